"""The reader of image archives, on archives made by hand: layers over layers, whiteouts, and what it must find."""

from __future__ import annotations

import io
import json
import pathlib
import tarfile

import pytest

from e2e import image_facts

Member = tuple[str, int, int, bytes]
"""Path, mode, owner, content."""


def _tar(members: list[Member], links: tuple[tuple[str, str, bytes], ...] = ()) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for path, mode, uid, content in members:
            info = tarfile.TarInfo(path)
            info.mode, info.uid, info.size = mode, uid, len(content)
            tar.addfile(info, io.BytesIO(content))
        for path, target, kind in links:
            info = tarfile.TarInfo(path)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    return made.getvalue()


def _archive(path: pathlib.Path, *layers: bytes) -> image_facts.Facts:
    config = {"User": "65532:65532", "Entrypoint": ["run"], "Env": ["A=b=c"], "Labels": {"x": "y"}}
    names = [f"{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "c.json", "Layers": names}]
    outer: list[Member] = [(name, 0o644, 0, layer) for name, layer in zip(names, layers, strict=True)]
    outer += [
        ("manifest.json", 0o644, 0, json.dumps(manifest).encode()),
        ("c.json", 0o644, 0, json.dumps({"config": config}).encode()),
    ]
    path.write_bytes(_tar(outer))
    return image_facts.read(path)


def test_layers_lie_over_one_another(tmp_path: pathlib.Path) -> None:
    """By hand: b is replaced, the folder d is taken away, the folder o is emptied and filled anew."""
    lower = _tar(
        [("./a", 0o644, 0, b"12"), ("b", 0o644, 0, b"123"), ("d/e", 0o644, 0, b"1"), ("o/p", 0o644, 0, b"1")],
        (("a2", "a", tarfile.LNKTYPE), ("s", "a", tarfile.SYMTYPE)),
    )
    upper = _tar([("b", 0o600, 0, b"1"), (".wh.d", 0, 0, b""), ("o/.wh..wh..opq", 0, 0, b""), ("o/q", 0o644, 0, b"1")])
    facts = _archive(tmp_path / "image.tar", lower, upper)
    assert sorted(facts.entries) == ["a", "a2", "b", "o/q", "s"]
    assert (facts.size_bytes, facts.layers_count) == (2 + 1 + 1, 2)
    assert (facts.user, facts.entrypoint, facts.environment, facts.labels) == (
        "65532:65532",
        ("run",),
        {"A": "b=c"},
        {"x": "y"},
    )


def test_it_finds_what_must_not_be_there(tmp_path: pathlib.Path) -> None:
    members: list[Member] = [
        ("usr/bin/passwd", 0o4755, 0, b"x"),
        ("usr/bin/wall", 0o2755, 0, b"x"),
        ("usr/bin/x86_64-linux-gnu-gcc-12", 0o755, 0, b"x"),
        ("usr/bin/gcc-12", 0o755, 0, b"x"),
        ("usr/bin/python3.11", 0o755, 0, b"x"),
        ("usr/lib/git-core/git-as", 0o755, 0, b"x"),
        ("opt/x/bin/pip3.11", 0o755, 0, b"x"),
        ("var/lib/apt/lists/deb", 0o644, 0, b"x"),
        ("var/lib/apt/lists/lock", 0o644, 0, b""),
        ("opt/x/loose", 0o666, 0, b"x"),
        ("opt/x/own", 0o644, 65532, b"x"),
    ]
    links = (("usr/bin/cc", "gcc-12", tarfile.SYMTYPE),)
    facts = _archive(tmp_path / "image.tar", _tar(members, links))
    assert facts.privileged() == ["usr/bin/passwd", "usr/bin/wall"]
    assert facts.build_tools() == [
        "opt/x/bin/pip3.11",
        "usr/bin/cc",
        "usr/bin/gcc-12",
        "usr/bin/x86_64-linux-gnu-gcc-12",
    ]
    assert facts.leftovers() == ["var/lib/apt/lists/deb"]
    assert facts.writable(65532) == ["opt/x/loose", "opt/x/own"]


def test_other_files_are_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.tar").write_bytes(_tar([("readme", 0o644, 0, b"x")]))
    with pytest.raises(ValueError, match=r"x\.tar is no archive"):
        image_facts.read(tmp_path / "x.tar")
