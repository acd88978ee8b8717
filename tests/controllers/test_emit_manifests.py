"""Emitted manifests: the golden files, and the rules that every manifest keeps (cases D01, D04, D09, B13)."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml as pyyaml

from inferasim_operator.cli.render import render_document
from inferasim_operator.emit import yaml
from simcore.errors import InputError

GOLDEN = Path(__file__).parents[1] / "golden/manifests"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/mix.yaml"))


def mix(case: str) -> dict[str, Any]:
    document: dict[str, Any] = pyyaml.load((GOLDEN / case / "mix.yaml").read_text(), pyyaml.CSafeLoader)
    return document


def changed(case: str, *, configuration: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    document = mix(case)
    document["spec"].update(spec)
    document["spec"]["configurations"][0]["configuration"].update(configuration or {})
    return document


def pods(manifests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Pod templates of everything that runs an engine."""
    for manifest in manifests:
        spec = manifest.get("spec", {})
        if manifest["kind"] == "Deployment":
            templates = [spec["template"]]
        elif manifest["kind"] == "LeaderWorkerSet":
            group = spec["leaderWorkerTemplate"]
            templates = [group["leaderTemplate"], group["workerTemplate"]]
        else:
            continue
        yield from (t for t in templates if t["spec"]["containers"][0]["name"] == "modelserver")


def engine(template: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = template["spec"]["containers"][0]
    return container


@pytest.mark.parametrize("case", CASES)
def test_the_manifests_are_those_reviewed(case: str) -> None:
    assert yaml.dump_all(render_document(mix(case))) == (GOLDEN / case / "manifests.yaml").read_text()


def test_another_process_emits_the_same_bytes() -> None:
    """Hash seeds differ between processes; the bytes do not."""
    code = (
        "import sys, yaml; from inferasim_operator.cli.render import render_document as r;"
        "from inferasim_operator.emit import yaml as y;"
        "sys.stdout.write(y.dump_all(r(yaml.safe_load(open(sys.argv[1]).read()))))"
    )
    case = "vllm-disaggregated-mori"
    command = [sys.executable, "-c", code, str(GOLDEN / case / "mix.yaml")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"})
    assert answer.stdout == (GOLDEN / case / "manifests.yaml").read_text()


@pytest.mark.parametrize("case", CASES)
def test_what_every_manifest_needs(case: str) -> None:
    """Case D09."""
    text = (GOLDEN / case / "manifests.yaml").read_text()
    manifests = list(pyyaml.load_all(text, pyyaml.CSafeLoader))
    assert "nvidia.com/gpu" not in text
    for manifest in manifests:
        assert len(manifest["metadata"]["name"]) <= 63
        assert manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "inferasim-operator"
    for template in pods(manifests):
        container = engine(template)
        gpus = container["resources"]["limits"]["amd.com/gpu"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert set(mounts.values()) <= set(volumes)
        if int(gpus) > 1:
            assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        length = next(a for a in container["args"] if a.startswith(("--max-model-len=", "--context-length=")))
        assert int(length.split("=")[1]) >= 9000
        flags = [argument.split("=")[0] for argument in container["args"] if argument.startswith("--")]
        assert len(flags) == len(set(flags))
        if "ports" in container:
            assert container["livenessProbe"]["httpGet"]["path"] == "/health"
            probe = container["startupProbe"]
            assert probe["failureThreshold"] * probe["periodSeconds"] > 600


@pytest.mark.parametrize(
    ("case", "layout", "gpus"),
    [
        ("vllm-one-node", {"tensorParallel": 4, "dataParallel": 2}, "8"),
        ("vllm-one-node", {"tensorParallel": 8}, "8"),
        ("vllm-one-node", {"tensorParallel": 1}, "1"),
        ("sglang-attention-dp-ep", {"tensorParallel": 8, "attentionDataParallel": 8}, "8"),
        ("sglang-one-node", {"tensorParallel": 2, "dataParallel": 4}, "8"),
        ("vllm-attention-dp-ep", {"tensorParallel": 1, "dataParallel": 8, "expertParallel": 8}, "8"),
        ("atom-attention-dp-ep", {"tensorParallel": 8, "attentionDataParallel": 8}, "8"),
    ],
)
def test_the_gpu_counts_of_the_cases(case: str, layout: dict[str, int], gpus: str) -> None:
    """Cases D09 and B03: GPUs per engine by what the engine makes of the widths."""
    (template,) = pods(render_document(changed(case, configuration={"layout": layout})))
    container = engine(template)
    assert container["resources"]["limits"]["amd.com/gpu"] == gpus
    assert ("/dev/shm" in {mount["mountPath"] for mount in container["volumeMounts"]}) is (gpus != "1")


def test_two_nodes_are_one_group_of_two_pods() -> None:
    manifests = {m["kind"]: m for m in render_document(mix("vllm-wide-ep"))}
    group = manifests["LeaderWorkerSet"]["spec"]
    assert (group["replicas"], group["leaderWorkerTemplate"]["size"]) == (1, 2)
    assert manifests["Service"]["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    leader, worker = (
        engine(group["leaderWorkerTemplate"][part])["args"] for part in ("leaderTemplate", "workerTemplate")
    )
    assert worker == [*leader, "--headless"]
    assert {"--nnodes=2", "--data-parallel-size=16", "--enable-expert-parallel"} <= set(leader)


def test_the_startup_budget_follows_the_bytes() -> None:
    """671 GB at the assumed 0.5 GB/s, twice, and 15 minutes: 3584 s, 120 periods; at a measured 5 GB/s 1168.4 s, 39."""
    for rate, periods, note in ((None, 120, True), (5_000_000_000, 39, False)):
        manifests = render_document(changed("vllm-attention-dp-ep", loadBytesPerSecond=rate))
        (template,) = pods(manifests)
        assert engine(template)["startupProbe"]["failureThreshold"] == periods
        workload = next(m for m in manifests if m["kind"] == "Deployment")
        assert ("inferasim.dev/assumed" in workload["metadata"].get("annotations", {})) is note


@pytest.mark.parametrize("case", ["sglang-attention-dp-ep", "vllm-two-nodes-pp"])
def test_an_autoscaler_owns_the_replicas(case: str) -> None:
    """Case D04."""
    (workload,) = (
        m
        for m in render_document(changed(case, autoscaling="Enabled"))
        if m["kind"] in ("Deployment", "LeaderWorkerSet")
    )
    assert "replicas" not in workload["spec"]


def test_the_labels_of_the_mix_are_not_copied() -> None:
    """Case D01: GitOps tools track by them; what the user asks for goes through a field."""
    document = changed("vllm-one-node", labels={"team": "search"})
    document["metadata"]["labels"] = {"app.kubernetes.io/instance": "myapp", "kustomize.toolkit.fluxcd.io/name": "x"}
    document["metadata"]["annotations"] = {"argocd.argoproj.io/tracking-id": "a:b"}
    text = yaml.dump_all(render_document(document))
    assert "app.kubernetes.io/instance" not in text
    assert "fluxcd" not in text
    assert "argocd" not in text
    assert all(m["metadata"]["labels"]["team"] == "search" for m in pyyaml.load_all(text, pyyaml.CSafeLoader))


def test_long_names_are_cut_and_stay_apart() -> None:
    """Case D08."""
    names = []
    for tail in ("a", "b"):
        document = mix("sglang-disaggregated")
        document["metadata"]["name"] = "m" * 100 + tail
        names.append([manifest["metadata"]["name"] for manifest in render_document(document)])
    assert all(len(name) <= 63 for group in names for name in group)
    assert not set(names[0]) & set(names[1])


def test_two_unequal_deployments_have_objects_of_their_own() -> None:
    document = mix("vllm-one-node")
    second = copy.deepcopy(document["spec"]["configurations"][0])
    second["name"] = "bulk"
    document["spec"]["configurations"].append(second)
    manifests = render_document(document)
    assert len({(m["kind"], m["metadata"]["name"]) for m in manifests}) == len(manifests) == 6
    document["spec"]["configurations"].reverse()
    assert render_document(document) == manifests


def test_what_the_anchor_measured_reaches_the_router() -> None:
    (config,) = (m for m in render_document(mix("atom-disaggregated")) if m["kind"] == "ConfigMap")
    document = pyyaml.load(config["data"]["epp-config.yaml"], pyyaml.CSafeLoader)
    plugins = {plugin["type"]: plugin.get("parameters", {}) for plugin in document["plugins"]}
    assert plugins["prefix-cache-affinity-filter"] == {"peakPrefillThroughput": 39000}
    (atom,) = plugins["core-metrics-extractor"]["engineConfigs"]
    assert (atom["name"], atom["queuedRequestsSpec"]) == ("atom", "atom:requests_waiting")
    referred = {ref["pluginRef"] for profile in document["schedulingProfiles"] for ref in profile["plugins"]}
    assert referred <= set(plugins)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (changed("vllm-one-node", configuration={"image": "vllm/vllm-openai-rocm:latest"}), "pinned"),
        (changed("vllm-one-node", configuration={"image": "registry:5000/vllm"}), "pinned"),
        (changed("vllm-one-node", format="SGLang"), "fit the engine"),
        (changed("vllm-one-node", rdmaResources=[{"name": "nvidia.com/gpu", "count": 8}]), "ROCm"),
        (changed("vllm-one-node", configuration={"accelerator": "H100"}), "AMD accelerator"),
        (
            changed("vllm-one-node", configuration={"layout": {"tensorParallel": 4, "pipelineParallel": 3}}),
            "whole nodes",
        ),
        (
            changed("atom-one-node", configuration={"layout": {"tensorParallel": 8, "pipelineParallel": 2}}),
            "released for one node only",
        ),
        (changed("sglang-disaggregated", images=None), "images.router"),
        (changed("vllm-disaggregated-mori", format="VLLM"), "be LLMD"),
        (changed("vllm-one-node", fromat="x"), "did you mean one of: format"),
        ({"kind": "ServingPlan"}, "DeploymentMix"),
    ],
)
def test_one_clear_line_for_what_cannot_be_emitted(document: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        render_document(document)
    assert "\n" not in str(caught.value)
