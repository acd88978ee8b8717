"""The real control plane with our CRDs in it, a namespace per test, and operators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e import controlplane
from tests.integration import rights
from tests.integration.harness import ROOT, STAND_IN, Cluster, Operator
from tests.integration.recording import Recorder


@pytest.fixture(scope="session")
def control_plane() -> Iterator[controlplane.ControlPlane]:
    """One control plane for all integration tests, with the audit log on and the CRDs installed."""
    with controlplane.ControlPlane(audit=True) as plane:
        plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        yield plane
        rights.record(plane)


@pytest.fixture
def cluster(control_plane: controlplane.ControlPlane, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A namespace of its own."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:50].strip("-")
    control_plane.kubectl("create", "namespace", name)
    yield Cluster(control_plane, name)
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def operator(cluster: Cluster) -> Iterator[Callable[..., Operator]]:
    """Makes operators for the test's namespace, not yet started; those that still run must end well."""
    made: list[Operator] = []

    def make(function: str = STAND_IN, *, lease_s: int = 2, **more: Any) -> Operator:
        made.append(Operator(cluster, function=function, lease_s=lease_s, **more))
        return made[-1]

    yield make
    for one in made:
        if one.process is not None and one.process.poll() is None:
            assert one.stop() == 0, one.text


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Recorder:
    """Keeps what the test measured."""
    return Recorder(request.node.nodeid)
