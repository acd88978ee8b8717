"""The archives themselves, before a cluster has them: small, not root's, nothing to build with, nothing left behind."""

from __future__ import annotations

import pytest

from e2e import image_facts, images

CEILING_MB = {images.OPERATOR: 1100, images.HARVESTER: 250, images.ENGINE: 250}
"""Unpacked. The operator's holds numpy, scipy, numba with its LLVM, Arrow and the language model's client."""
RUN_AS = {images.OPERATOR: 65532, images.HARVESTER: 1000, images.ENGINE: 1000}


@pytest.fixture(scope="module", params=list(images.IMAGES.values()), ids=lambda image: image.name)
def image(request: pytest.FixtureRequest) -> images.Image:
    if images.missing_packages():
        pytest.skip(f"needs Debian's {' '.join(images.missing_packages())}: python -m e2e packages --install")
    found: images.Image = request.param
    return found


@pytest.fixture(scope="module")
def facts(image: images.Image) -> image_facts.Facts:
    return image_facts.read(images.ensure([image])[image.reference])


def test_nothing_in_it_is_root_or_builds(image: images.Image, facts: image_facts.Facts) -> None:
    uid = RUN_AS[image]
    assert facts.user == f"{uid}:{uid}"
    assert facts.privileged() == []
    assert facts.build_tools() == []
    assert facts.writable(uid) == []


def test_nothing_is_left_of_its_making(image: images.Image, facts: image_facts.Facts) -> None:
    assert facts.leftovers() == []
    assert not [path for path in facts.entries if path.endswith((".pyc.1", ".orig", ".rej")) or "/.git/" in path]
    assert facts.size_bytes < CEILING_MB[image] * 1e6, f"{facts.size_bytes / 1e6:.0f} MB"


def test_it_says_what_it_is(image: images.Image, facts: image_facts.Facts) -> None:
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in facts.labels.items()}
    assert labels["licenses"] == "Apache-2.0"
    assert labels["title"] == image.name
    assert labels["description"]


def test_the_operators_kernels_are_compiled(image: images.Image, facts: image_facts.Facts) -> None:
    """A plan in a read-only pod compiles nothing: the cache is there, and for no particular machine."""
    if image is not images.OPERATOR:
        pytest.skip("only the operator simulates")
    cache = facts.environment["NUMBA_CACHE_DIR"].lstrip("/")
    assert sum(path.startswith(f"{cache}/") and path.endswith(".nbc") for path in facts.entries) > 10
    assert facts.environment["NUMBA_CPU_NAME"] == "generic"
