"""One cluster with the project's images for all scenarios, from the provider that CLUSTER names, and the chart in it.

Scenarios run in the order of their file: the first one installs an older chart, the last one takes the chart away.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from e2e import binaries, cluster, images, kind, leftovers, node, progress
from e2e.scenarios import steps
from tests.integration import chart
from tests.integration.harness import Cluster

TIMINGS = "INFERASIM_E2E_TIMINGS"


@pytest.fixture(scope="session")
def timings() -> Iterator[dict[str, float]]:
    """Seconds of the steps that take long; printed, and kept in the file that INFERASIM_E2E_TIMINGS names."""
    found: dict[str, float] = {}
    yield found
    text = json.dumps({name: round(seconds, 1) for name, seconds in found.items()}, indent=2)
    print(f"\nseconds: {text}")
    if os.environ.get(TIMINGS):
        pathlib.Path(os.environ[TIMINGS]).write_text(text + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def running(timings: dict[str, float]) -> Iterator[cluster.Cluster]:
    """A cluster that has the images, and that leaves nothing behind."""
    is_kind = os.environ.get("CLUSTER") == "kind"
    if is_kind and kind.missing_programs():
        pytest.skip(f"CLUSTER=kind needs {', '.join(kind.missing_programs())}")
    missing = [] if is_kind else node.missing_packages()
    missing += images.missing_packages()
    if missing or (os.geteuid() != 0 and not is_kind):
        pytest.skip(f"needs root and Debian's {' '.join(missing)}: python -m e2e packages --install")
    shown = progress.Progress()
    archives = steps.timed(timings, "images", lambda: images.ensure(shown=shown))
    needed = ["helm"] if is_kind else [*cluster.LocalCluster.needs, "helm"]
    steps.timed(timings, "programs", lambda: binaries.ensure(needed, shown=shown))
    before = None if is_kind else leftovers.snapshot()
    provider: Any = kind.KindCluster() if is_kind else cluster.LocalCluster(audit=True, shown=shown)
    started: cluster.Cluster = steps.timed(timings, "cluster up", provider.__enter__)
    try:
        for reference, archive in archives.items():
            steps.timed(timings, f"load {reference}", functools.partial(started.load_image, archive))
        yield started
    finally:
        steps.timed(timings, "cluster down", provider.stop)
    if before is not None:
        assert leftovers.find(before, started.state_dir) == []


@pytest.fixture(scope="session")
def release(running: cluster.Cluster) -> cluster.Cluster:
    """The cluster with the chart of this tree installed and its operator ready."""
    steps.install(running, chart.CHART)
    return running


@pytest.fixture
def team(release: cluster.Cluster, request: pytest.FixtureRequest) -> Cluster:
    """A namespace of the scenario's own; it is kept for the uninstall to meet."""
    return steps.namespace(release, request.node.name)
