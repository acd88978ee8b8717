"""The real API server's word on the CRDs and on the accept/ and reject/ corpora."""

from __future__ import annotations

import pathlib

import pytest

from e2e import controlplane
from e2e.errors import KubectlError
from tests.integration.harness import ROOT

CORPORA = ROOT / "tests" / "contract"


def test_crds_pass_a_strict_dry_run(control_plane: controlplane.ControlPlane) -> None:
    """No pruned field, no non-structural schema, CEL within its budget: the conditions say so."""
    control_plane.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", str(ROOT / "crds"))
    shown = control_plane.kubectl(
        "get", "crd", "-o", 'jsonpath={range .items[*]}{.status.conditions[?(@.type=="NonStructuralSchema")]}{end}'
    )
    assert shown == ""


@pytest.mark.parametrize("path", sorted((CORPORA / "accept").glob("*.yaml")), ids=lambda path: path.stem)
def test_server_accepts(control_plane: controlplane.ControlPlane, path: pathlib.Path) -> None:
    """As the types do."""
    control_plane.kubectl("create", "--dry-run=server", "--validate=strict", "-f", str(path))


@pytest.mark.parametrize("path", sorted((CORPORA / "reject").glob("*.yaml")), ids=lambda path: path.stem)
def test_server_refuses(control_plane: controlplane.ControlPlane, path: pathlib.Path) -> None:
    """As the types do, with the text that the file names."""
    expected = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# expect: ")
    with pytest.raises(KubectlError) as caught:
        control_plane.kubectl("create", "--dry-run=server", "--validate=strict", "-f", str(path))
    assert expected in caught.value.stderr
