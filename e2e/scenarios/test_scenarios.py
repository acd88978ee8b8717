"""What a team does with the operator, on a cluster that runs it: everything through kubectl and helm."""

from __future__ import annotations

import json
import pathlib
import shutil
import time
from typing import Any

import pytest
import yaml

from e2e import cluster, demo, images
from e2e.errors import KubectlError
from e2e.scenarios import searches, steps
from tests.conditions import assert_conditions
from tests.integration import chart
from tests.integration.harness import ROOT, Cluster, Object, until

EXAMPLES = ROOT / "examples"
CRDS = ("anchorharvests.inferasim.dev", "deploymentmixes.inferasim.dev", "servingplans.inferasim.dev")
LIVE_PERMILLE = 250  # of an emulated engine that shares two cores with the cluster
PLAN_S = 300.0
HARVEST_S = 900.0


@pytest.fixture
def following(tmp_path: pathlib.Path) -> pathlib.Path:
    """The chart of a version to come, in which ServingPlans have one status field more."""
    target = tmp_path / "inferasim"
    shutil.copytree(chart.CHART, target)
    file = target / "generated" / "crds" / "servingplans.inferasim.dev.yaml"
    crd = yaml.safe_load(file.read_text())
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["novelty"] = {
        "type": "string"
    }
    file.write_text(yaml.safe_dump(crd))
    about = yaml.safe_load((target / "Chart.yaml").read_text())
    # The image stays: its tag is given, and the version alone rolls the pod.
    (target / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": "99.0.0"}))
    return target


def write_novelty(team: Cluster) -> str:
    """Write the new field, and read back what the server keeps of it."""
    patch = json.dumps({"status": {"novelty": "new"}})
    team.kubectl("patch", "servingplan", "chat", "--subresource=status", "--type=merge", "-p", patch)
    return str(team.get("servingplan", "chat")["status"].get("novelty", ""))


def test_examples_and_upgrade(running: cluster.Cluster, following: pathlib.Path, timings: dict[str, float]) -> None:
    """The examples become Ready; an upgrade brings a field to the status of a plan and computes nothing again."""
    steps.timed(timings, "helm install, operator ready", lambda: steps.install(running, chart.CHART))
    team = steps.namespace(running, "examples")
    for manifest in demo.anchor_config_maps():
        team.apply(manifest)
    for name in ("plan.yaml", "mix.yaml"):
        team.kubectl("apply", "-f", str(EXAMPLES / name))
    live = steps.timed(
        timings, "examples: plan Ready", lambda: team.wait("servingplan", "chat", "Ready", timeout_s=PLAN_S)
    )
    assert_conditions(live)
    assert live["status"]["selected"]
    team.wait("deploymentmix", "chat", "Ready")
    assert write_novelty(team) == "", "a field that the CRD does not know is dropped"

    (before,) = steps.operator_pods(running)
    steps.timed(timings, "helm upgrade, operator ready", lambda: steps.install(running, following))
    (after,) = steps.operator_pods(running)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    until(lambda: write_novelty(team) == "new", "the new field is kept")
    # A write of the new operator leaves it, and the answer, as they are.
    generation = live["metadata"]["generation"] + 1
    team.kubectl("patch", "servingplan", "chat", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    team.wait_for("servingplan", "chat", ".status.observedGeneration", str(generation))
    kept = team.wait("servingplan", "chat", "Ready")
    assert kept["status"]["novelty"] == "new"
    for field in ("selected", "result"):
        assert kept["status"][field] == live["status"][field], "what has an answer is not computed again"


def test_the_image_is_as_little_as_it_says(release: cluster.Cluster) -> None:
    """Non-root, a root file system that nobody writes, no capability, no compiler and no pip."""
    (pod,) = steps.operator_pods(release)

    def inside(*command: str) -> str:
        return release.kubectl("-n", steps.OPERATOR_NAMESPACE, "exec", pod["metadata"]["name"], "--", *command)

    assert inside("id", "-u").strip() == "65532"
    with pytest.raises(KubectlError, match="Read-only file system"):
        inside("python", "-c", "open('/opt/inferasim/x', 'w')")
    status = inside("cat", "/proc/self/status")
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    assert inside("sh", "-c", "command -v gcc cc clang make pip pip3 || true").split() == []
    # A cache that is hit has its entries loaded, and none is made where nobody may write.
    warm = "import simcore.des.warm as w, simcore.des.closed_loop; w.warm()"
    traced = inside("sh", "-c", f"NUMBA_DEBUG_CACHE=1 python -c '{warm}'")
    assert "data loaded from" in traced
    assert "data saved to" not in traced


def test_a_killed_operator_pod_loses_nothing(
    team: Cluster, release: cluster.Cluster, timings: dict[str, float]
) -> None:
    """The pod goes without a farewell in mid-search; its successor takes the lead and answers once."""
    for manifest in demo.anchor_config_maps():
        team.apply(manifest)
    document: Object = yaml.safe_load((EXAMPLES / "plan.yaml").read_text())
    document["spec"]["search"] = {"shards": 2}
    team.apply(document)
    until(lambda: len(team.list("jobs")) == 1, "the search has its Job")
    job = team.list("jobs")[0]["metadata"]["uid"]
    (pod,) = steps.operator_pods(release)
    name = pod["metadata"]["name"]
    release.kubectl("-n", steps.OPERATOR_NAMESPACE, "delete", "pod", name, "--grace-period=0", "--force")
    started_s = time.monotonic()
    jobs: set[str] = set()

    def is_ready() -> bool:
        jobs.update(found["metadata"]["uid"] for found in team.list("jobs"))
        conditions = team.get("servingplan", "chat").get("status", {}).get("conditions", [])
        return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

    until(is_ready, "the plan is Ready", timeout_s=PLAN_S)
    timings["operator pod killed: plan Ready"] = time.monotonic() - started_s
    assert jobs <= {job}, "the search was run once"
    assert_conditions(team.get("servingplan", "chat"))


def test_trace_and_table_on_a_volume(team: Cluster, timings: dict[str, float]) -> None:
    """A trace is read from a claim and all candidates are written to it as Parquet, a file per pod of the search."""
    disk, claim = searches.volume(team)
    team.plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(disk))  # of no namespace
    team.apply(claim, *demo.anchor_config_maps())
    searches.said(team, searches.fill())
    team.apply(searches.plan_on_the_volume())
    live = steps.timed(timings, "plan on a volume", lambda: team.wait("servingplan", "hour", "Ready", timeout_s=PLAN_S))
    assert_conditions(live)
    where, _, folder = live["status"]["table"].partition("/")
    assert where == searches.CLAIM
    found = json.loads(searches.said(team, searches.python_job("read", searches.READ_TABLE.format(folder=folder))))
    assert found["files"] == ["part-000-of-002.parquet", "part-001-of-002.parquet"]
    assert found["rows"] == live["status"]["progress"]["candidatesScored"]
    assert found["owner"] == 65532, "no pod of the search is root"
    (choice,) = live["status"]["selected"]
    assert choice["predicted"]["tokensPerSecondPerGpu"] >= 0.95 * found["best"] - 1, "within the 5 % band of the table"
    told = json.loads(steps.inferasim(team, "explain", "hour", "-o", "json"))
    assert told["tiers"][0]["chosen"]["tokensPerSecondPerGpu"] == choice["predicted"]["tokensPerSecondPerGpu"]


def test_a_search_by_an_agent_with_the_image_as_it_is(team: Cluster, timings: dict[str, float]) -> None:
    """A chat model in a pod is asked by the operator's own image, with the key of its Secret."""
    team.apply(*demo.anchor_config_maps(), *searches.chat_model("sk-of-the-scenario"))
    team.wait("pod", "chat-model", "Ready")
    address = team.get("service", "chat-model")["spec"]["clusterIP"]
    team.apply(searches.plan_of_an_agent(address))
    live = steps.timed(
        timings, "search by an agent", lambda: team.wait("servingplan", "agent", "Ready", timeout_s=PLAN_S)
    )
    assert_conditions(live)
    search = live["status"]["search"]
    assert "modelFailures" not in search, search
    lines = [json.loads(line) for line in team.kubectl("logs", "chat-model").splitlines()]
    assert 0 < len(lines) <= search["modelRequests"] <= 16
    assert {line["authorization"] for line in lines} == {"Bearer sk-of-the-scenario"}


def harvest(name: str, **changes: Any) -> Object:
    """A short harvest of the emulated engine at one GPU."""
    return {
        "apiVersion": "inferasim.dev/v1alpha1",
        "kind": "AnchorHarvest",
        "metadata": {"name": name},
        "spec": {
            "engine": {"name": "VLLM", "version": "0.33.0", "image": images.ENGINE.reference},
            "model": {"name": "Llama-3.1-8B", "source": {"hub": {"id": "meta-llama/Llama-3.1-8B"}}},
            "accelerator": {"product": "MI355X"},
            "signature": {"weightDtype": "bf16"},
            "sweeps": {"decodeBatches": [1, 2, 4, 8], "prefillLengthsTokens": [256, 512, 1024, 2048, 4096]},
            **changes,
        },
    }


def test_two_harvests_on_one_node_take_turns(team: Cluster, timings: dict[str, float]) -> None:
    """The scheduler itself queues the second: no two measure on one node at once, though there are GPUs enough."""
    team.apply(harvest("one"), harvest("two"))
    started_s = time.monotonic()
    seen_waiting = False

    def are_ready() -> bool:
        nonlocal seen_waiting
        pods = team.list("pods", "-l", "inferasim.dev/owner-kind=AnchorHarvest")
        phases = [pod["status"]["phase"] for pod in pods if "nodeName" in pod["spec"]]
        assert phases.count("Running") <= 1
        live = team.list("anchorharvests")
        conditions = [item for found in live for item in found.get("status", {}).get("conditions", [])]
        reasons = [item["reason"] for item in conditions]
        seen_waiting = seen_waiting or "WaitingForNode" in reasons
        assert not any(reason.endswith("Failed") for reason in reasons), reasons
        return [item["status"] for item in conditions if item["type"] == "Ready"] == ["True", "True"]

    until(are_ready, "both harvests are Ready", timeout_s=HARVEST_S)
    timings["two harvests in turn"] = time.monotonic() - started_s
    assert seen_waiting


def plan_of_the_harvest() -> Object:
    """A plan of one GPU from the harvest's anchor alone, its search in an Indexed Job of two pods."""
    return {
        "apiVersion": "inferasim.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "llama"},
        "spec": {
            "model": {"name": "Llama-3.1-8B"},
            "cluster": {"accelerator": "MI355X", "nodes": 1, "gpusPerNode": 1},
            "engines": [{"name": "VLLM"}],
            "workload": {"fixed": {"promptTokens": 512, "outputTokens": 64}},
            "load": {"concurrencies": [4]},
            "tiers": [{"name": "bulk"}],
            "search": {"shards": 2},
            "anchors": {"mode": "Anchored"},
        },
    }


def mix_of_the_plan() -> Object:
    """The plan's choice, applied, and its live error from the pods' own pages."""
    return {
        "apiVersion": "inferasim.dev/v1alpha1",
        "kind": "DeploymentMix",
        "metadata": {"name": "llama"},
        "spec": {
            "planRef": {"name": "llama"},
            "format": "VLLM",
            "model": {"source": {"hub": {"id": "meta-llama/Llama-3.1-8B"}}},
            "delivery": {"type": "Apply"},
            "observation": {"windowSeconds": 30},
            "tolerance": {"tpotPermille": LIVE_PERMILLE},
        },
    }


def load(address: str, *, clients: int) -> Object:
    """A Job that is so many clients of a Service, as the plan supposed them."""
    spec = {
        "schema": "inferasim.dev/harvest/v1",
        "engine": {"name": "VLLM", "version": "0.33.0"},
        "model": {"name": "Llama-3.1-8B", "path": "Llama-3.1-8B"},
        "accelerator": {"product": "MI355X"},
    }
    script = (
        f"echo '{json.dumps(spec)}' > /tmp/spec.json; exec python -m inferasim_harvester probe --spec /tmp/spec.json"
        f" --engine-url http://{address}:8000 --concurrency {clients} --requests-each 400"
        " --prompt-tokens 512 --output-tokens 64"
    )
    container = {
        "name": "clients",
        "image": images.HARVESTER.reference,
        "command": ["sh", "-c", script],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "clients"},
        "spec": {"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


def test_from_harvest_to_live_error(team: Cluster, release: cluster.Cluster, timings: dict[str, float]) -> None:
    """Measure, plan in an Indexed Job, deliver, put load on it, and read how far prediction and reality are apart."""
    team.apply(harvest("llama"))
    until(lambda: [pod["status"]["phase"] for pod in team.list("pods")] == ["Running"], "it runs", timeout_s=HARVEST_S)
    # Followed from a kubelet until the harvester ends.
    follow = ("harvest", "logs", "llama", "--follow")
    said = steps.timed(timings, "harvest", lambda: steps.inferasim(team, *follow))
    assert '"phase": "Done"' in said, said[-2000:]
    live = team.wait("anchorharvest", "llama", "Ready")
    assert_conditions(live)
    anchor = live["status"]["anchorRef"]["configMap"]

    team.apply(plan_of_the_harvest())
    planned = steps.timed(timings, "plan in an Indexed Job", lambda: team.wait("servingplan", "llama", "Ready"))
    (choice,) = planned["status"]["selected"]
    assert choice["source"]["anchor"] == anchor
    assert choice["configuration"]["replicas"] == 1

    team.apply(mix_of_the_plan())
    team.wait("deploymentmix", "llama", "Delivered")
    (deployment,) = team.list("deployments")
    name = deployment["metadata"]["name"]
    team.kubectl("rollout", "status", f"deployment/{name}", "--timeout=180s", timeout_s=190.0)
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == images.ENGINE.reference

    address = team.get("service", name)["spec"]["clusterIP"]
    team.apply(load(address, clients=choice["configuration"]["concurrency"]))
    path = '.status.conditions[?(@.type=="Reporting")].status'
    reported = steps.timed(
        timings, "load to live error", lambda: team.wait_for("deploymentmix", "llama", path, "True", timeout_s=240.0)
    )
    (found,) = reported["status"]["deployments"]
    print(f"\nlive error: {found['error']}")
    assert abs(found["error"]["tpotPermille"]) <= LIVE_PERMILLE, found
    assert 'mix="llama"' in steps.metrics(release)
    team.kubectl("delete", "deploymentmix", "llama")
    until(lambda: not team.list("deployments"), "what the mix applied goes with it")
    until(lambda: 'mix="llama"' not in steps.metrics(release), "its series go with it")


def test_uninstall_leaves_every_object_and_none_is_stuck(release: cluster.Cluster) -> None:
    """`helm uninstall` ends the operator and nothing else; then objects, namespaces and CRDs go at once."""
    before = release.kubectl("get", "inferasim", "-A", "-o", "name").split()
    assert before
    chart.helm("uninstall", chart.RELEASE, "--namespace", steps.OPERATOR_NAMESPACE, kubeconfig=release.kubeconfig)
    until(lambda: not steps.operator_pods(release), "the operator is gone")
    assert release.kubectl("get", "inferasim", "-A", "-o", "name").split() == before
    for found in json.loads(release.kubectl("get", "namespaces", "-o", "json"))["items"]:
        name = found["metadata"]["name"]
        if not name.startswith("kube-") and name != "default":
            release.kubectl("delete", "namespace", name, "--timeout=120s", timeout_s=130.0)
    release.kubectl("delete", "crd", *CRDS, "--timeout=60s", timeout_s=70.0)
