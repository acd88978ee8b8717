"""An emission as a folder: what a package holds, and what no package can hold."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml as pyyaml
from typer.testing import CliRunner

from inferasim_operator.cli.app import app
from inferasim_operator.cli.render import render_document, render_emission
from inferasim_operator.emit import yaml
from inferasim_operator.emit.package import Package
from simcore.errors import InputError

GOLDEN = Path(__file__).parents[1] / "golden/manifests"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/mix.yaml"))
LLMD = [case for case in CASES if "format: LLMD" in (GOLDEN / case / "mix.yaml").read_text()]


def mix(case: str) -> dict[str, Any]:
    document: dict[str, Any] = pyyaml.load((GOLDEN / case / "mix.yaml").read_text(), pyyaml.CSafeLoader)
    return document


def files(document: dict[str, Any], package: Package) -> dict[str, str]:
    return render_emission(document)[1].files(package)


def parsed(text: str) -> Any:
    return pyyaml.load(text, pyyaml.CSafeLoader)


@pytest.mark.parametrize("case", CASES)
def test_a_base_is_the_emission_in_pieces(case: str) -> None:
    found = files(mix(case), Package.KUSTOMIZE)
    listed = parsed(found["base/kustomization.yaml"])["resources"]
    assert set(found) == {"kustomization.yaml", "base/kustomization.yaml", *(f"base/{name}" for name in listed)}
    assert [parsed(found[f"base/{name}"]) for name in listed] == render_document(mix(case))
    assert files(mix(case), Package.MANIFESTS)["manifests.yaml"] == yaml.dump_all(render_document(mix(case)))


@pytest.mark.parametrize("case", LLMD)
def test_the_chart_gets_what_the_picker_would_have_had(case: str) -> None:
    manifests = render_document(mix(case))
    (pool,) = (manifest for manifest in manifests if manifest["kind"] == "InferencePool")
    (config,) = (manifest for manifest in manifests if manifest["kind"] == "ConfigMap")
    found = files(mix(case), Package.HELM)
    router = parsed(found[f"router/{pool['metadata']['name']}.values.yaml"])["router"]
    assert router["modelServers"]["matchLabels"] == pool["spec"]["selector"]["matchLabels"]
    assert router["modelServers"]["targetPorts"] == pool["spec"]["targetPorts"]
    assert parsed(router["epp"]["pluginsCustomConfig"][router["epp"]["pluginsConfigFile"]]) == parsed(
        config["data"]["epp-config.yaml"]
    )
    image = router["epp"]["image"]
    assert f"{image['registry']}/{image['repository']}:{image['tag']}" == mix(case)["spec"]["images"]["router"]
    kept = {parsed(text)["kind"] for path, text in found.items() if path.startswith("base/")}
    assert not kept & {"InferencePool", "ConfigMap", "Role", "RoleBinding", "ServiceAccount", "Service"}


def test_two_builds_of_one_image_are_not_pinned_by_name() -> None:
    """Kustomize replaces every image of a name: an entry would make two builds one, or lose the tag beside a digest."""
    document = mix("vllm-one-node")
    second = copy.deepcopy(document["spec"]["configurations"][0])
    second["name"] = "bulk"
    second["configuration"]["image"] += "-next"
    document["spec"]["configurations"].append(second)
    assert "images" not in parsed(files(document, Package.KUSTOMIZE)["kustomization.yaml"])
    (one, _) = document["spec"]["configurations"]
    document["spec"]["configurations"] = [one]
    for image, entries in (
        ("host:5000/a/vllm:v1", [{"name": "host:5000/a/vllm", "newTag": "v1"}]),
        (f"a/vllm@sha256:{'0' * 64}", [{"digest": f"sha256:{'0' * 64}", "name": "a/vllm"}]),
        (f"a/vllm:v1@sha256:{'0' * 64}", []),
    ):
        one["configuration"]["image"] = image
        assert parsed(files(document, Package.KUSTOMIZE)["kustomization.yaml"]).get("images", []) == entries


def test_an_autoscaler_keeps_the_replicas() -> None:
    document = mix("vllm-llmd-colocated")
    document["spec"]["autoscaling"] = "Enabled"
    assert "replicas" not in parsed(files(document, Package.KUSTOMIZE)["kustomization.yaml"])


@pytest.mark.parametrize(
    ("case", "changes", "told"),
    [
        ("vllm-one-node", {}, "chart is llm-d's"),
        ("vllm-llmd-colocated", {"images": {"router": "picker:v1"}}, "registry"),
        ("vllm-llmd-colocated", {"name": "m" * 60}, "53 characters"),
    ],
)
def test_one_clear_line_for_what_no_chart_takes(case: str, changes: dict[str, Any], told: str) -> None:
    document = mix(case)
    document["metadata"]["name"] = changes.pop("name", document["metadata"]["name"])
    document["spec"] |= changes
    with pytest.raises(InputError, match=told) as caught:
        files(document, Package.HELM)
    assert "\n" not in str(caught.value)


def test_the_command_writes_the_folder_and_overwrites_nothing(tmp_path: Path) -> None:
    case = "vllm-disaggregated-nixl"
    arguments = ["render", "-f", str(GOLDEN / case / "mix.yaml"), "-d", str(tmp_path / "out")]
    first = CliRunner().invoke(app, [*arguments, "--package", "Kustomize"])
    assert (first.exit_code, first.output) == (0, "")
    written = {
        str(path.relative_to(tmp_path / "out")): path.read_text()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert written == files(mix(case), Package.KUSTOMIZE)
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2
    assert "new or empty" in again.stderr
    lone = CliRunner().invoke(app, [*arguments[:3], "--package", "Helm"])
    assert lone.exit_code == 2
    assert "--directory" in lone.stderr
