"""What a node and the images are made of, without root, a cluster or a build."""

from __future__ import annotations

import ast
import json
import os
import pathlib
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib

import pytest

from e2e import cluster, images, leftovers, node, node_config, node_init


def test_links_do_not_overlap() -> None:
    """Two addresses in a subnet of four each, and pods of each node in a range of their own."""
    assert (node_config.Link(0).host, node_config.Link(0).node) == ("100.127.0.1", "100.127.0.2")
    assert (node_config.Link(3).host, node_config.Link(3).node) == ("100.127.0.13", "100.127.0.14")
    assert [str(node_config.Link(index).pods) for index in (0, 3)] == ["10.244.0.0/24", "10.244.3.0/24"]
    names = [
        name for index in range(256) for name in (node_config.Link(index).host_name, node_config.Link(index).node_name)
    ]
    assert len(set(names)) == 512
    assert max(map(len, names)) <= 15, "the kernel's limit"


def test_configurations_are_well_formed(tmp_path: pathlib.Path) -> None:
    runtime = tomllib.loads(node_config.containerd_config(cni=tmp_path))
    assert runtime["plugins"]["io.containerd.cri.v1.images"]["pinned_images"]["sandbox"] == node_config.SANDBOX_IMAGE
    assert runtime["grpc"]["address"] == "/run/containerd/containerd.sock"
    kubelet = node_config.kubelet_config(tmp_path)
    assert kubelet["containerRuntimeEndpoint"] == f"unix://{runtime['grpc']['address']}"
    assert kubelet["authentication"]["anonymous"] == {"enabled": False}
    bridge = node_config.cni_config(node_config.Link(2))["plugins"][0]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.244.2.0/24"}]]


def test_the_first_process_needs_nothing_but_python() -> None:
    """It runs isolated and without site packages (`-I -S`), so it may import the standard library only."""
    tree = ast.parse(pathlib.Path(node_init.__file__).read_text(encoding="utf-8"))
    imported = {name.name for found in ast.walk(tree) if isinstance(found, ast.Import) for name in found.names}
    imported |= {found.module or "" for found in ast.walk(tree) if isinstance(found, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("is_second", [False, True], ids=["version-1", "version-2"])
def test_a_process_enters_its_groups(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, *, is_second: bool
) -> None:
    """In version 1 a new group's empty processor set is filled from the root's; version 2's root has none."""
    root = tmp_path if is_second else tmp_path / "cpuset"
    group = root / "node"
    group.mkdir(parents=True)
    for file in ("cpuset.cpus", "cpuset.mems"):
        (group / file).write_text("\n", encoding="ascii")
        if not is_second:
            (root / file).write_text("0-1\n", encoding="ascii")
    (root / ("cgroup.controllers" if is_second else "cgroup.procs")).touch()
    monkeypatch.setattr(node_init, "CGROUPS", tmp_path)
    node_init.enter_cgroups("node")
    assert (group / "cgroup.procs").read_text(encoding="ascii") == str(os.getpid())
    assert (group / "cpuset.cpus").read_text(encoding="ascii") == ("\n" if is_second else "0-1\n")
    node_init.make_room("node", 77)
    leaf = group / node_init.LEAF / "cgroup.procs"
    assert (leaf.read_text(encoding="ascii") if leaf.exists() else "") == ("77" if is_second else "")


@pytest.mark.skipif(os.geteuid() != 0 or bool(node.missing_packages()), reason="makes namespaces and a link, as root")
def test_a_node_on_cgroups_of_version_2(tmp_path: pathlib.Path) -> None:
    """Its pods get the controllers: no process is left in the root group of the node's view. Then nothing is left."""
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "e2e.tests.cgroup2_node"]
    answer = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60)
    if "mount" in answer.stderr and answer.returncode:
        pytest.skip(f"cgroups of version 2 cannot be mounted here: {answer.stderr.strip()[-200:]}")
    assert answer.returncode == 0, answer.stderr
    assert "\nroot: \n" in f"\n{answer.stdout}", answer.stdout
    assert "0::/k8s.io/pod\n" in answer.stdout, answer.stdout
    assert "shell ended with exit code 7" in answer.stdout, answer.stdout
    assert answer.stdout.endswith("left: []\n")
    if "\ncontrollers: \n" in answer.stdout:
        pytest.skip("version 2 has no controller here, so nothing can be refused")


def test_version_2_must_give_on_what_a_kubelet_needs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose init has not asked for processor sets."""
    monkeypatch.setattr(node_init, "CGROUPS", tmp_path)
    assert node_init.lacking_controllers() == [], "version 1 has a hierarchy for each"
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n", encoding="ascii")
    (tmp_path / "cgroup.subtree_control").write_text("cpu io memory pids\n", encoding="ascii")
    assert node_init.lacking_controllers() == ["cpuset"]


def test_sandbox_image_is_a_docker_archive(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    archive = tmp_path / "pause.tar"
    cluster.write_image(archive, node_config.SANDBOX_IMAGE, program)
    with tarfile.open(archive) as tar:
        (manifest,) = json.loads(_content(tar, "manifest.json"))
        config = json.loads(_content(tar, manifest["Config"]))
        assert manifest["RepoTags"] == [node_config.SANDBOX_IMAGE]
        assert config["config"]["Entrypoint"] == ["/pause"]
        layer = _content(tar, manifest["Layers"][0])
    (tmp_path / "layer.tar").write_bytes(layer)
    with tarfile.open(tmp_path / "layer.tar") as tar:
        assert [(entry.name, entry.mode) for entry in tar] == [("pause", 0o755)]


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()


@pytest.mark.parametrize("image", images.IMAGES.values(), ids=lambda image: image.name)
def test_an_image_has_all_that_its_dockerfile_copies(image: images.Image) -> None:
    files = [str(file) for file in images.context_files(image)]
    assert image.dockerfile in files
    assert not [file for file in files if "__pycache__" in file]
    if image is images.OPERATOR:
        assert {"pyproject.toml", "simcore/des/warm.py", "examples/plan.yaml"} <= set(files)
        assert "operator/inferasim_operator/__main__.py" in files
    if image is images.ENGINE:
        assert files == ["images/emulated-engine/Dockerfile", "images/emulated-engine/engine"]


def test_an_image_is_named_by_its_content(tmp_path: pathlib.Path) -> None:
    """A change of a copied file, of a mode and of the image below gives another name; one beside it does not."""
    for image in (images.HARVESTER, images.ENGINE):
        for file in images.context_files(image):
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(images.ROOT / file, tmp_path / file)
    seen = {images.digest(images.ENGINE, root=tmp_path)}
    assert seen == {images.digest(images.ENGINE)}
    (tmp_path / "images" / "README.md").write_text("beside", encoding="utf-8")
    assert images.digest(images.ENGINE, root=tmp_path) in seen
    (tmp_path / "images/emulated-engine/engine").chmod(0o644)
    seen.add(images.digest(images.ENGINE, root=tmp_path))
    with (tmp_path / "simcore" / "units.py").open("a", encoding="utf-8") as module:
        module.write("\n")
    seen.add(images.digest(images.ENGINE, root=tmp_path))
    assert len(seen) == 3


def test_emulated_engine_takes_the_command_of_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of vLLM's flags, in both spellings, only the name and where to listen reach the emulator."""
    script = images.ROOT / "images" / "emulated-engine" / "engine"
    ran: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _program, words: ran.append(words))
    line = "serve org/model --served-model-name=M --host 127.0.0.1 --port=8001 --max-model-len=9000"
    monkeypatch.setattr(sys, "argv", ["vllm", *line.split()])
    runpy.run_path(str(script), run_name="__main__")
    (words,) = ran
    given = dict(zip(words[3::2], words[4::2], strict=True))
    assert (given["--model"], given["--host"], given["--port"]) == ("M", "127.0.0.1", "8001")
    monkeypatch.setattr(sys, "argv", ["vllm", "bench"])
    with pytest.raises(SystemExit, match="only `vllm serve MODEL` is known"):
        runpy.run_path(str(script), run_name="__main__")


def test_what_was_not_there_before_is_found() -> None:
    empty = leftovers.Snapshot(*(frozenset[str]() for _ in range(5)))
    before = leftovers.Snapshot(frozenset({"gone0"}), *(frozenset[str]() for _ in range(4)))
    assert leftovers.differences(before, empty) == ["links: gone0 is gone"]
    assert leftovers.differences(empty, before) == ["links: gone0 is new"]
    assert leftovers.differences(before, before) == []
