"""Every golden emission passes the real API server's strict dry-run, with the real CRDs; so do its other packages."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from e2e import controlplane
from inferasim_operator.cli.app import app
from tests.integration.chart import helm

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


@pytest.mark.parametrize("case", CASES)
def test_kustomize_builds_what_was_emitted(plane: controlplane.ControlPlane, case: str, tmp_path: Path) -> None:
    """The overlay's pins change nothing as they are written; the same objects come out."""
    write(tmp_path, case, "Kustomize")
    built = list(yaml.load_all(plane.kubectl("kustomize", str(tmp_path)), yaml.CSafeLoader))
    wanted = list(yaml.load_all((GOLDEN / case / "manifests.yaml").read_text(), yaml.CSafeLoader))
    assert sorted(built, key=identity) == sorted(wanted, key=identity)


def test_the_overlay_is_where_images_and_replicas_are_changed(plane: controlplane.ControlPlane, tmp_path: Path) -> None:
    write(tmp_path, "vllm-two-nodes-pp", "Kustomize")
    overlay = yaml.load((tmp_path / "kustomization.yaml").read_text(), yaml.CSafeLoader)
    for image in overlay["images"]:
        image["newTag"] = "v9"
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    text = plane.kubectl("kustomize", str(tmp_path))
    images = [line.split(": ")[1] for line in text.splitlines() if line.strip().startswith("image:")]
    assert len(images) == 2, "leader and worker of the group"
    assert all(image.endswith(":v9") for image in images)


@pytest.mark.parametrize("case", [case for case in CASES if "format: LLMD" in (GOLDEN / case / "mix.yaml").read_text()])
def test_helm_takes_the_values_and_the_server_the_rest(
    plane: controlplane.ControlPlane, case: str, tmp_path: Path
) -> None:
    """By a chart that reads the values where llm-d's router charts do; theirs cannot be had without their registry."""
    write(tmp_path, case, "Helm")
    (values,) = (tmp_path / "router").glob("*.values.yaml")
    release = values.name.removesuffix(".values.yaml")
    chart = chart_that_reads_like_llmds(tmp_path / "chart")
    made = helm("template", release, str(chart), "--namespace", "serving", "--values", str(values))
    objects = {found["kind"]: found for found in yaml.load_all(made, yaml.CSafeLoader)}
    emitted = list(yaml.load_all((GOLDEN / case / "manifests.yaml").read_text(), yaml.CSafeLoader))
    pool, config, picker = objects["InferencePool"], objects["ConfigMap"], objects["Picker"]
    (ours,) = (found for found in emitted if found["kind"] == "InferencePool")
    assert pool["metadata"]["name"] == ours["metadata"]["name"]
    assert pool["spec"] == {
        **ours["spec"],
        "endpointPickerRef": {**ours["spec"]["endpointPickerRef"], "kind": "Service"},
    }
    (theirs,) = (found for found in emitted if found["kind"] == "ConfigMap")
    assert config["data"][picker["file"]] == theirs["data"]["epp-config.yaml"]
    (container,) = (
        found["spec"]["template"]["spec"]["containers"][0]
        for found in emitted
        if found["kind"] == "Deployment" and found["metadata"]["name"] == theirs["metadata"]["name"]
    )
    assert picker["image"] == container["image"]
    text = plane.kubectl("kustomize", str(tmp_path))
    answer = plane.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", input=text)
    assert answer.count("serverside-applied (server dry run)") == len(list(yaml.load_all(text, yaml.CSafeLoader)))


def chart_that_reads_like_llmds(folder: Path) -> Path:
    """Pool, picker configuration and picker image from the values that config/charts/routerlib reads them from."""
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: router\nversion: 0.1.0\n")
    (folder / "templates/all.yaml").write_text(
        """{{- $r := .Values.router }}
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: {{ .Release.Name }}, namespace: {{ .Release.Namespace }}}
spec:
  targetPorts: {{ toJson $r.modelServers.targetPorts }}
  selector: {matchLabels: {{ toJson $r.modelServers.matchLabels }}}
  endpointPickerRef:
    kind: Service
    name: {{ .Release.Name | trunc 40 }}-epp
    port: {number: 9002}
    failureMode: {{ $r.inferencePool.failureMode }}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name | trunc 40 }}-epp}
data:
  {{- $r.epp.pluginsCustomConfig | toYaml | nindent 2 }}
---
apiVersion: v1
kind: Picker
image: {{ $r.epp.image.registry }}/{{ $r.epp.image.repository }}:{{ $r.epp.image.tag }}
file: {{ $r.epp.pluginsConfigFile }}
"""
    )
    return folder


def write(folder: Path, case: str, package: str) -> None:
    arguments = ["render", "-f", str(GOLDEN / case / "mix.yaml"), "--package", package, "-d", str(folder)]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output


def identity(manifest: dict[str, Any]) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def test_the_dry_run_would_notice(plane: controlplane.ControlPlane) -> None:
    """The same way with a field that does not exist: the test above can fail."""
    text = (GOLDEN / "vllm-one-node/manifests.yaml").read_text()
    broken = text.replace("livenessProbe:", "livenessPrope:")
    with pytest.raises(Exception, match=r"livenessPrope") as caught:
        plane.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", input=broken)
    assert not isinstance(caught.value, subprocess.TimeoutExpired)
