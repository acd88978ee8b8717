"""The project's images, built from its own Dockerfiles into archives that any container runtime loads.

`buildah` builds them where it is installed, on a base of Debian's own making (`debootstrap`) so that no image registry
is needed; elsewhere `docker` does, with the Dockerfiles' own base. An archive is named by a hash of the files that its
Dockerfile copies: an unchanged image costs nothing.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess

from e2e import cache, errors, processes, progress

ROOT = pathlib.Path(__file__).resolve().parent.parent
TAG = "e2e"
BASE = "docker.io/library/debian:bookworm-slim"
SUITE = "bookworm"
ARCHIVES_KEPT = 3
_TRUST = pathlib.Path("/usr/local/share/ca-certificates")
_PIP = pathlib.Path("/etc/pip.conf")
# What Debian's own slim image leaves out.
_SLIM = ("usr/share/doc", "usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man")
_PACKAGES = ("buildah", "debootstrap")


@dataclasses.dataclass(frozen=True)
class Image:
    """One image. `base` is another image of ours that its Dockerfile's `base_argument` is to be."""

    name: str
    dockerfile: str
    base: str | None = None
    base_argument: str = "BASE_IMAGE"

    @property
    def reference(self) -> str:
        """The name and tag that pods use."""
        return f"{self.name}:{TAG}"


OPERATOR = Image("inferasim-operator", "images/operator/Dockerfile")
HARVESTER = Image("inferasim-harvester", "harvester-image/Dockerfile.slim")
ENGINE = Image("inferasim-emulated-engine", "images/emulated-engine/Dockerfile", base="inferasim-harvester")
IMAGES = {image.name: image for image in (OPERATOR, HARVESTER, ENGINE)}
STAND_IN = Image("inferasim-stand-in-engine", "images/stand-in-engine/Dockerfile")
"""An engine's own image as the harvester's Dockerfile finds it: with a Python, a command and no harvester."""
LAYERED = Image("inferasim-harvester-on-engine", "harvester-image/Dockerfile", STAND_IN.name, "ENGINE_IMAGE")
_BASES = {**IMAGES, STAND_IN.name: STAND_IN}


def missing_packages() -> list[str]:
    """The Debian packages that building needs and this machine lacks; none where docker is used."""
    return [] if builder() == "docker" else [name for name in _PACKAGES if shutil.which(name) is None]


def builder() -> str:
    """`buildah` where a root has it and what makes its base; else `docker`, where its daemon answers."""
    can_buildah = os.geteuid() == 0 and all(shutil.which(name) for name in _PACKAGES)
    return "docker" if not can_buildah and docker_answers() else "buildah"


@functools.cache
def docker_answers() -> bool:
    """Whether docker can be used: many machines have the command and no daemon."""
    if shutil.which("docker") is None:
        return False
    answer = subprocess.run(["docker", "version"], capture_output=True, check=False, stdin=subprocess.DEVNULL)
    return answer.returncode == 0


def ensure(
    images: collections.abc.Iterable[Image] = tuple(IMAGES.values()), *, shown: progress.Progress | None = None
) -> dict[str, pathlib.Path]:
    """Return the archive of each image by its reference, building those that the cache lacks."""
    line = progress.Progress() if shown is None else shown
    return {image.reference: _archive(image, line) for image in images}


def digest(image: Image, *, root: pathlib.Path = ROOT) -> str:
    """A hash of the files that decide an image: its Dockerfile, what that copies, and its base's the same."""
    hashed = hashlib.sha256()
    if image.base is not None:
        hashed.update(digest(_BASES[image.base], root=root).encode())
    for file in context_files(image, root=root):
        content = (root / file).read_bytes()
        hashed.update(f"{file}\0{os.access(root / file, os.X_OK)}\0{len(content)}\0".encode())
        hashed.update(content)
    return hashed.hexdigest()[:16]


def context_files(image: Image, *, root: pathlib.Path = ROOT) -> list[pathlib.Path]:
    """The files that a Dockerfile needs, relative to the tree: itself and what it copies from outside its stages."""
    found = {pathlib.Path(image.dockerfile)}
    text = (root / image.dockerfile).read_text(encoding="utf-8").replace("\\\n", " ")
    for match in re.finditer(r"^COPY\s+(.+)$", text, re.MULTILINE):
        words = match.group(1).split()
        if words[0].startswith("--from="):
            continue
        for source in (pathlib.Path(word) for word in words[:-1]):
            inside = [source] if (root / source).is_file() else (root / source).rglob("*")
            found.update(
                file.relative_to(root) if file.is_absolute() else file
                for file in inside
                if (root / file).is_file() and "__pycache__" not in file.parts
            )
    return sorted(found)


def _archive(image: Image, shown: progress.Progress) -> pathlib.Path:
    archive = cache.cache_root() / "images" / f"{image.name}-{digest(image)}.tar"
    if archive.exists():
        return archive
    waiting = functools.partial(shown.update, "waiting for another build of images")
    with cache.exclusive(cache.cache_root() / "images.lock", while_waiting=waiting):
        if not archive.exists():
            _build(image, archive, shown)
    return archive


def _build(image: Image, archive: pathlib.Path, shown: progress.Progress) -> None:
    if image.base is not None:
        _build_chain(_BASES[image.base], shown)
    archive.parent.mkdir(parents=True, exist_ok=True)
    staging = cache.staging_folder(archive.parent)
    try:
        _make(image, staging, shown)
        made = staging / "image.tar"
        if builder() == "docker":
            _run(["docker", "save", "--output", str(made), image.reference], image.name, shown)
        else:
            target = f"docker-archive:{made}:{image.reference}"
            _run([*_buildah(), "push", "--quiet", f"localhost/{image.reference}", target], image.name, shown)
        made.replace(archive)
        # Another checkout may use an older one; what is older still is not worth its space.
        known = sorted(archive.parent.glob(f"{image.name}-*.tar"), key=lambda file: file.stat().st_mtime)
        for older in known[:-ARCHIVES_KEPT]:
            older.unlink(missing_ok=True)
        shown.finish(f"built {image.reference}, {archive.stat().st_size / 1e6:.0f} MB")
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _build_chain(image: Image, shown: progress.Progress) -> None:
    """Build an image that another one is made from; its layers are cached, so a repetition takes a second."""
    staging = cache.staging_folder(cache.cache_root() / "images")
    try:
        _make(image, staging, shown)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _make(image: Image, staging: pathlib.Path, shown: progress.Progress) -> None:
    context = staging / "context"
    for file in context_files(image):
        (context / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, context / file)
    arguments = ["--file", str(context / image.dockerfile), "--tag", image.reference]
    if image.base is not None:
        local = "localhost/" if builder() == "buildah" else ""
        arguments += ["--build-arg", f"{image.base_argument}={local}{_BASES[image.base].reference}"]
    if builder() == "docker":
        command = ["docker", "build", "--quiet", *arguments, str(context)]
    else:
        _ensure_base(shown)
        command = [*_buildah(), "bud", "--isolation", "chroot", "--pull=never", "--layers", *arguments, str(context)]
    _run(command, image.name, shown)


def _ensure_base(shown: progress.Progress) -> None:
    """Make the image that stands for Debian's own slim one, with what this machine trusts when it fetches packages."""
    trusted = [file for file in (*sorted(_TRUST.glob("*.crt")), _PIP) if file.exists()]
    recipe = repr((SUITE, _SLIM, "ADD", [(file.name, file.read_bytes()) for file in trusted]))
    made_so = cache.cache_root() / "buildah" / f"base-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    known = subprocess.run([*_buildah(), "images", "--quiet", BASE], capture_output=True, text=True, check=False)
    if made_so.exists() and known.returncode == 0 and known.stdout.strip():
        return
    staging = cache.staging_folder(cache.cache_root() / "buildah")
    try:
        system = staging / "rootfs"
        _run(["debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE, str(system)], "the base", shown)
        for file in trusted:
            shutil.copy(file, system / file.relative_to("/"))
        _run(["chroot", str(system), "update-ca-certificates"], "the base", shown)
        for left in (*_SLIM, "var/cache/apt", "var/lib/apt/lists"):
            shutil.rmtree(system / left, ignore_errors=True)
        excluded = "".join(f"path-exclude /{folder}/*\n" for folder in _SLIM)
        (system / "etc/dpkg/dpkg.cfg.d/slim").write_text(excluded, encoding="ascii")
        # As an archive, since COPY would give every file to root.
        archive = staging / "rootfs.tar"
        _run(["tar", "-C", str(system), "--numeric-owner", "-cf", str(archive), "."], "the base", shown)
        shutil.rmtree(system)
        (staging / "Dockerfile").write_text('FROM scratch\nADD rootfs.tar /\nCMD ["bash"]\n', encoding="utf-8")
        _run([*_buildah(), "bud", "--isolation", "chroot", "--tag", BASE, str(staging)], "the base", shown)
        made_so.touch()
        shown.finish("made the base image")
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def run_inside(image: Image, arguments: list[str], *, volume: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """The image's entry point with `arguments`, as its own user, and `volume` under its own path. Builds the image."""
    ensure([image])
    mount = f"{volume}:{volume}"
    if builder() == "docker":
        command = ["docker", "run", "--rm", "--volume", mount, image.reference, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)
    made = [*_buildah(), "from", "--pull-never", f"localhost/{image.reference}"]
    container = subprocess.run(made, capture_output=True, text=True, check=True).stdout.strip()
    try:
        told = subprocess.run([*_buildah(), "inspect", container], capture_output=True, text=True, check=True).stdout
        words = json.loads(told)["OCIv1"]["config"]["Entrypoint"]
        # The kernel settings of namespaces are not needed, and not to be had everywhere: chroot, as for building.
        inside = ["run", "--isolation", "chroot", "--volume", mount, container, "--", *words, *arguments]
        return subprocess.run([*_buildah(), *inside], capture_output=True, text=True, check=False)
    finally:
        subprocess.run([*_buildah(), "rm", container], capture_output=True, check=False)


def _buildah() -> list[str]:
    """buildah with a store of its own, so that what a machine's owner has built is not touched."""
    store = cache.cache_root() / "buildah"
    return ["buildah", "--root", str(store / "storage"), "--runroot", str(store / "run")]


def _run(command: list[str], what: str, shown: progress.Progress) -> None:
    """Run one step of a build with its output in a log, and show that it goes on."""
    log = cache.cache_root() / "buildah" / "build.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    # Attestations would make an index of an image, of which `ctr` imports all or nothing.
    process = processes.spawn(command, log=log, environment={**os.environ, "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"})
    try:
        while process.poll() is None:
            shown.update(f"building {what}")
            try:
                process.wait(timeout=progress.TERMINAL_EVERY_S)
            except subprocess.TimeoutExpired:
                continue
    finally:
        processes.end(process, grace_s=5.0)
    if process.returncode != 0:
        raise errors.BuildError(f"building {what} failed; end of {log}:\n{processes.tail(log)}")
