"""Every golden emission passes the strict dry-run of the real API server, with the real CRDs of the other projects."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from e2e import controlplane

GOLDEN = Path(__file__).parents[1] / "golden/manifests"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/mix.yaml"))
OTHERS = Path(__file__).parents[3] / "shared/data/crds"
NEEDED = ("leaderworkersets", "inferencepools", "httproutes", "podmonitors")


@pytest.fixture(scope="module")
def plane(control_plane: controlplane.ControlPlane) -> controlplane.ControlPlane:
    files = [OTHERS / f"{name}.yaml" for name in NEEDED]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        pytest.skip(f"the CRDs of the other projects are not beside this checkout: {', '.join(missing)}")
    for file in files:
        control_plane.kubectl("apply", "--server-side", "-f", str(file))
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
    control_plane.kubectl("create", "namespace", "serving")
    return control_plane


@pytest.mark.parametrize("case", CASES)
def test_the_server_accepts_the_manifests(plane: controlplane.ControlPlane, case: str) -> None:
    answer = plane.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", str(GOLDEN / case / "manifests.yaml")
    )
    documents = (GOLDEN / case / "manifests.yaml").read_text().count("---\n")
    assert answer.count("serverside-applied (server dry run)") == documents


def test_the_dry_run_would_notice(plane: controlplane.ControlPlane) -> None:
    """The same way with a field that does not exist: the test above can fail."""
    text = (GOLDEN / "vllm-one-node/manifests.yaml").read_text()
    broken = text.replace("livenessProbe:", "livenessPrope:")
    with pytest.raises(Exception, match=r"livenessPrope") as caught:
        plane.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", input=broken)
    assert not isinstance(caught.value, subprocess.TimeoutExpired)
