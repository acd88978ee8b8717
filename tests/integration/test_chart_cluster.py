"""The chart on a real API server of its own: install, upgrade, uninstall, rights, a second operator.

There is no kubelet: pods are made and admitted, and stay Pending; operators run as processes with what was rendered.
"""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from e2e import controlplane
from e2e.errors import KubectlError
from tests import builders
from tests.conditions import assert_conditions
from tests.integration import chart, rights
from tests.integration.harness import ROOT, Cluster, until

CRDS = ("anchorharvests.inferasim.dev", "deploymentmixes.inferasim.dev", "servingplans.inferasim.dev")
Plane = controlplane.ControlPlane
MakeOperator = Callable[[list[dict[str, Any]]], chart.ChartOperator]


@pytest.fixture
def plane() -> Iterator[Plane]:
    """A control plane of the test's own: the tests replace CRDs, and what one leaves must not reach the next."""
    with controlplane.ControlPlane(audit=True) as own:
        yield own
        rights.record(own)


@pytest.fixture
def operate(plane: Plane) -> Iterator[MakeOperator]:
    """Operators of renderings; those that still run must end well."""
    made: list[chart.ChartOperator] = []

    def make(objects: list[dict[str, Any]]) -> chart.ChartOperator:
        made.append(chart.ChartOperator(plane, objects))
        return made[-1]

    yield make
    for operator in made:
        operator.end()


@pytest.fixture
def previous(tmp_path: pathlib.Path) -> pathlib.Path:
    """The chart as it was when ServingPlans had no `status.summary`."""
    target = tmp_path / "inferasim"
    shutil.copytree(chart.CHART, target)
    file = target / "generated" / "crds" / "servingplans.inferasim.dev.yaml"
    crd = yaml.safe_load(file.read_text())
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["summary"]
    file.write_text(yaml.safe_dump(crd))
    about = yaml.safe_load((target / "Chart.yaml").read_text())
    (target / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": "0.0.9"}))
    return target


def release(plane: Plane, verb: str, folder: pathlib.Path, namespace: str, *arguments: str) -> str:
    """`helm install` or `helm upgrade`, as the admin, not waiting for pods that no kubelet will start."""
    own = ("--namespace", namespace, *arguments)
    return chart.helm(verb, chart.RELEASE, str(folder), *own, kubeconfig=plane.kubeconfig)


def say_summary(cluster: Cluster) -> str:
    """Write `status.summary` of the plan, and read back what the server kept of it."""
    patch = json.dumps({"status": {"observedGeneration": 1, "summary": "TP1 x8"}})
    cluster.kubectl("patch", "servingplan", "plan", "--subresource=status", "--type=merge", "-p", patch)
    return str(cluster.get("servingplan", "plan")["status"].get("summary", ""))


def apply_rendering(plane: Plane, folder: pathlib.Path, namespace: str, values: dict[str, Any] | None = None) -> None:
    text = yaml.safe_dump_all(chart.render(values, namespace=namespace, chart=folder))
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)
    plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{name}" for name in CRDS))


def test_upgrade_brings_new_status_fields_and_uninstall_keeps_everything(plane: Plane, previous: pathlib.Path) -> None:
    """D03 with Helm, and C04: neither `helm uninstall` nor the end of the namespace hangs on live objects."""
    cluster = Cluster(plane, "upgraded")
    release(plane, "install", previous, "upgraded", "--create-namespace")
    plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/servingplans.inferasim.dev")
    cluster.apply(builders.serving_plan())
    uid = cluster.get("servingplan", "plan")["metadata"]["uid"]
    assert say_summary(cluster) == ""

    release(plane, "upgrade", chart.CHART, "upgraded")
    until(lambda: say_summary(cluster) == "TP1 x8", "the new field is kept")
    chart.helm("rollback", chart.RELEASE, "1", "--namespace", "upgraded", kubeconfig=plane.kubeconfig)
    until(lambda: say_summary(cluster) == "", "the older CRD knows the field no more")
    release(plane, "upgrade", chart.CHART, "upgraded")
    until(lambda: say_summary(cluster) == "TP1 x8", "the new field is kept again")
    cluster.apply(builders.anchor_harvest(), chart.mix())

    chart.helm("uninstall", chart.RELEASE, "--namespace", "upgraded", kubeconfig=plane.kubeconfig, timeout_s=60.0)
    assert cluster.list("deployments,serviceaccounts,roles", "-l", "app.kubernetes.io/part-of=inferasim") == []
    live = cluster.get("servingplan", "plan")
    assert (live["metadata"]["uid"], live["status"]["summary"]) == (uid, "TP1 x8")

    # The same release comes back as it was; another one has to say that it takes over.
    release(plane, "install", chart.CHART, "upgraded")
    chart.helm("uninstall", chart.RELEASE, "--namespace", "upgraded", kubeconfig=plane.kubeconfig, timeout_s=60.0)
    with pytest.raises(chart.HelmError, match="invalid ownership metadata"):
        release(plane, "install", chart.CHART, "elsewhere", "--create-namespace")
    release(plane, "install", chart.CHART, "elsewhere", "--create-namespace", "--take-ownership")
    chart.helm("uninstall", chart.RELEASE, "--namespace", "elsewhere", kubeconfig=plane.kubeconfig, timeout_s=60.0)
    assert cluster.get("servingplan", "plan")["metadata"]["uid"] == uid

    assert len(cluster.list("inferasim")) == 3
    plane.kubectl("delete", "namespace", "upgraded", "--timeout=90s", timeout_s=100.0)


def test_rendered_upgrade_brings_new_status_fields(plane: Plane, previous: pathlib.Path) -> None:
    """D03 as Argo CD does it: `helm template`, then apply."""
    plane.kubectl("create", "namespace", "rendered")
    cluster = Cluster(plane, "rendered")
    apply_rendering(plane, previous, "rendered")
    cluster.apply(builders.serving_plan())
    assert say_summary(cluster) == ""
    apply_rendering(plane, chart.CHART, "rendered")
    until(lambda: say_summary(cluster) == "TP1 x8", "the new field is kept")
    before = {crd: plane.kubectl("get", "crd", crd, "-o", "jsonpath={.metadata.resourceVersion}") for crd in CRDS}
    apply_rendering(plane, chart.CHART, "rendered")
    after = {crd: plane.kubectl("get", "crd", crd, "-o", "jsonpath={.metadata.resourceVersion}") for crd in CRDS}
    assert before == after
    plane.kubectl("delete", "namespace", "rendered", "--wait=false")


def test_the_pods_pass_the_restricted_standard(plane: Plane) -> None:
    """Admission itself judges: in a namespace that enforces `restricted`, the Deployment gets its pods."""
    plane.kubectl("create", "namespace", "restricted")
    plane.kubectl("label", "namespace", "restricted", "pod-security.kubernetes.io/enforce=restricted")
    apply_rendering(plane, chart.CHART, "restricted", {"replicas": 2})
    cluster = Cluster(plane, "restricted")
    until(lambda: len(cluster.list("pods")) == 2, "both pods are admitted")
    for resource in ("deployment", "clusterrole", "clusterrolebinding"):
        plane.kubectl("-n", "restricted", "delete", resource, "inferasim")
    plane.kubectl("delete", "namespace", "restricted", "--wait=false")


def full_flow(cluster: Cluster) -> None:
    """A harvest's Job, a plan's answer, a mix's Deployment: most of what the operator writes."""
    cluster.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan(), builders.anchor_harvest())
    cluster.apply(chart.mix(delivery={"type": "Apply"}))
    assert_conditions(cluster.wait("servingplan", "plan", "Ready"))
    assert_conditions(cluster.wait("deploymentmix", "mix", "Ready"))
    until(lambda: len(cluster.list("jobs")) == 1, "the harvest has its Job")
    assert [found["metadata"]["name"] for found in cluster.list("deployments")] == ["mix-bulk"]
    # Asks for what has been taken away again: patches, deletes, and the pods of the harvest.
    cluster.apply(builders.anchor_harvest(suspend=True))
    cluster.wait_for("anchorharvest", "harvest", '.status.conditions[?(@.type=="Ready")].reason', "Suspended")
    cluster.kubectl("delete", "deploymentmix", "mix")


def test_namespace_scope_needs_no_cluster_role(plane: Plane, operate: MakeOperator) -> None:
    """C08: rendered for two namespaces, applied, run by its own account: all works, and nothing is refused."""
    for name in ("team-a", "team-b", "home"):
        plane.kubectl("create", "namespace", name)
    plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    values = {"scope": "Namespace", "namespaces": ["team-a", "team-b"], "crds": {"install": False}}
    objects = chart.render(values, namespace="home")
    plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(objects))
    bound = json.loads(plane.kubectl("get", "clusterrolebindings", "-o", "json"))["items"]
    assert not [b for b in bound if any(s.get("namespace") == "home" for s in b.get("subjects") or ())]
    operator = operate(objects)
    operator.start()
    full_flow(Cluster(plane, "team-a"))
    Cluster(plane, "team-b").apply(builders.anchor_config_map("anchor-a"), builders.serving_plan())
    Cluster(plane, "team-b").wait("servingplan", "plan", "Ready")
    operator.end()
    assert operator.refusals() == []
    assert "status=403" not in operator.text
    with pytest.raises(
        KubectlError, match="Forbidden"
    ):  # the same account, so that the empty list above means something
        plane.kubectl("get", "configmaps", "-n", "default", kubeconfig=operator.kubeconfig)
    assert operator.refusals() == ["list configmaps/ default/"]
    lease = Cluster(plane, "home").get("lease", "inferasim")
    assert lease["spec"]["holderIdentity"] == ""
    plane.kubectl("delete", "namespace", "team-a", "team-b", "home", "--wait=false")


def test_cluster_scope_serves_every_namespace(plane: Plane, operate: MakeOperator) -> None:
    """Installed by Helm; one operator, its ClusterRole, two namespaces; the lease in its own."""
    release(plane, "install", chart.CHART, "operators", "--create-namespace")
    plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{name}" for name in CRDS))
    operator = operate(chart.render(namespace="operators"))
    operator.start()
    for name in ("first", "second"):
        plane.kubectl("create", "namespace", name)
    full_flow(Cluster(plane, "first"))
    second, finds = Cluster(plane, "second"), {"accelerator": "MI355X", "discovery": {}}
    second.apply(builders.anchor_config_map("anchor-a"), builders.serving_plan())
    second.apply(builders.serving_plan("finds", cluster=finds))
    second.wait("servingplan", "plan", "Ready")
    reason = '.status.conditions[?(@.type=="Ready")].reason'
    second.wait_for("servingplan", "finds", reason, "NoNodesFound")  # asked of the cluster, which has none here
    operator.end()
    assert operator.refusals() == []
    chart.helm("uninstall", chart.RELEASE, "--namespace", "operators", kubeconfig=plane.kubeconfig, timeout_s=60.0)
    assert len(Cluster(plane, "first").list("servingplans,anchorharvests")) == 2
    plane.kubectl("delete", "namespace", "first", "second", "operators", "--timeout=90s", timeout_s=100.0)


def test_of_two_replicas_one_works(plane: Plane, operate: MakeOperator) -> None:
    """C02: the second stands by, is healthy, takes over when the first is killed, and runs nothing twice."""
    plane.kubectl("create", "namespace", "pair")
    plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    values: dict[str, Any] = {"scope": "Namespace", "replicas": 2, "operator": {"leaseSeconds": 2}}
    objects = chart.render(values | {"crds": {"install": False}}, namespace="pair")
    plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(objects))
    first, second = operate(objects), operate(objects)
    cluster = Cluster(plane, "pair")
    first.start()
    until(lambda: "leading as" in first.text, "the first leads")
    second.start()
    until(lambda: "another instance leads; waiting" in second.text, "the second stands by")
    cluster.apply(builders.anchor_harvest(), builders.anchor_config_map("anchor-a"), builders.serving_plan())
    cluster.wait("servingplan", "plan", "Ready")
    until(lambda: len(cluster.list("jobs")) == 1, "the harvest has its Job")
    assert "leading as" not in second.text
    job, answers = cluster.list("jobs")[0]["metadata"]["uid"], len(cluster.list("configmaps"))
    first.kill()
    until(lambda: "leading as" in second.text, "the second takes over")
    second.until_passes("AnchorHarvest", 1)
    second.until_passes("ServingPlan", 1)
    assert [found["metadata"]["uid"] for found in cluster.list("jobs")] == [job]
    assert len(cluster.list("configmaps")) == answers
    second.end()
    assert second.refusals() == []
    plane.kubectl("delete", "namespace", "pair", "--wait=false")
