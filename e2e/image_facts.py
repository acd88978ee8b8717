"""What an image's archive holds, layer over layer, without a container runtime: its files, modes, user and environment.

A pod shows what it may see; the archive also shows what a shell in it would find.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import stat
import tarfile
import typing

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
BUILD_TOOLS = frozenset(
    {"gcc", "g++", "cc", "c++", "clang", "cpp", "ld", "as", "make", "cmake", "rustc", "cargo", "go", "nvcc", "hipcc"}
    | {"pip", "pip3", "uv", "conda", "curl", "wget", "gdb", "strace"}
)
"""Programs that build, install or fetch others; as a part of a file's name, without Debian's platform and version."""
LEFT_BY_BUILDS = ("var/lib/apt/lists/", "var/cache/apt/", "root/.cache/", "tmp/", "src/", "build/", "wheels/")
"""Folders in which a build leaves what nobody needs."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file, link or folder of the merged file system."""

    mode: int
    size_bytes: int
    uid: int
    is_file: bool
    is_link: bool


@dataclasses.dataclass(frozen=True)
class Facts:
    """An image: its configuration, and its files by their path without the leading slash."""

    user: str
    entrypoint: tuple[str, ...]
    environment: dict[str, str]
    labels: dict[str, str]
    layers_count: int
    entries: dict[str, Entry]

    @property
    def size_bytes(self) -> int:
        """Of all files that a container sees."""
        return sum(entry.size_bytes for entry in self.entries.values())

    def privileged(self) -> list[str]:
        """Files that run as somebody other than who starts them."""
        bits = stat.S_ISUID | stat.S_ISGID
        return sorted(path for path, entry in self.entries.items() if entry.is_file and entry.mode & bits)

    def build_tools(self) -> list[str]:
        """Programs on which a stranger in the container could build."""
        return sorted(
            path
            for path, entry in self.entries.items()
            if (entry.is_link or (entry.is_file and entry.mode & 0o111))
            and path.rpartition("/")[0].split("/")[-1] in ("bin", "sbin")
            and {part.rstrip("0123456789.") for part in path.rpartition("/")[2].split("-")} & BUILD_TOOLS
        )

    def leftovers(self) -> list[str]:
        """Files in folders that a build should have emptied."""
        return sorted(p for p, e in self.entries.items() if e.is_file and e.size_bytes and p.startswith(LEFT_BY_BUILDS))

    def writable(self, uid: int) -> list[str]:
        """Files that this user could change if the root file system were writable."""
        return sorted(
            path
            for path, entry in self.entries.items()
            if entry.is_file and (entry.mode & 0o002 or (entry.uid == uid and entry.mode & 0o200))
        )


def read(archive: pathlib.Path) -> Facts:
    """The facts of a `docker save` archive, as docker and buildah write it. Raises ValueError for anything else."""
    with tarfile.open(archive) as outer:
        try:
            (manifest,) = _document(outer, "manifest.json")
            document = _document(outer, manifest["Config"])
            entries: dict[str, Entry] = {}
            for layer in manifest["Layers"]:
                with tarfile.open(fileobj=_member(outer, layer), mode="r:*") as inner:
                    _merge(entries, inner)
        except (KeyError, TypeError, tarfile.TarError) as error:
            raise ValueError(f"{archive.name} is no archive of one image: {error!r}") from error
    config = document.get("config") or {}
    return Facts(
        user=str(config.get("User") or ""),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        environment=dict(entry.split("=", 1) for entry in config.get("Env") or ()),
        labels=dict(config.get("Labels") or {}),
        layers_count=len(manifest["Layers"]),
        entries=entries,
    )


def _document(outer: tarfile.TarFile, name: str) -> typing.Any:
    return json.load(_member(outer, name))


def _member(outer: tarfile.TarFile, name: str) -> typing.IO[bytes]:
    stream = outer.extractfile(name)
    if stream is None:
        raise KeyError(name)
    return stream


def _merge(entries: dict[str, Entry], layer: tarfile.TarFile) -> None:
    """One layer over those below: it adds, replaces, and takes away what its whiteouts name."""
    found: dict[str, Entry] = {}
    for member in layer:
        path = member.name.removeprefix("./").strip("/")
        folder, _, name = path.rpartition("/")
        if name == OPAQUE:
            _take(entries, f"{folder}/" if folder else "")
        elif name.startswith(WHITEOUT):
            gone = f"{folder}/{name.removeprefix(WHITEOUT)}".lstrip("/")
            entries.pop(gone, None)
            _take(entries, f"{gone}/")
        elif path:
            size = 0 if member.islnk() else member.size  # a hard link's bytes are counted once
            found[path] = Entry(member.mode, size, member.uid, member.isfile() or member.islnk(), member.issym())
    entries.update(found)


def _take(entries: dict[str, Entry], below: str) -> None:
    for path in [path for path in entries if path.startswith(below)]:
        del entries[path]
