"""Thousands of objects on a real API server: how soon a restarted operator has seen all, what an idle one costs."""

from __future__ import annotations

import json
import os
import pathlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import yaml

from e2e import controlplane
from tests import builders
from tests.integration import chart
from tests.integration.harness import ROOT, Object, until
from tests.integration.recording import Recorder, seconds

NAMESPACES = tuple(f"team-{number}" for number in range(20))
IDLE_S = 60.0
IDLE_LIMIT_BYTES = 150e6
"""What an idle operator of a thousand objects may hold."""
RESYNC_S = 600.0
"""How often each object is looked at with nothing to wake it (`engine.kind.Kind.resync_s`)."""
PATHS = {
    "ServingPlan": "/apis/inferasim.dev/v1alpha1/namespaces/{}/servingplans",
    "AnchorHarvest": "/apis/inferasim.dev/v1alpha1/namespaces/{}/anchorharvests",
    "DeploymentMix": "/apis/inferasim.dev/v1alpha1/namespaces/{}/deploymentmixes",
}


@pytest.fixture
def plane() -> Iterator[controlplane.ControlPlane]:
    """A control plane of the test's own, without an audit log: that of 100,000 requests would be what is measured."""
    with controlplane.ControlPlane() as own:
        own.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        own.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
        yield own


@dataclass(frozen=True)
class Cost:
    """What an operator used: its process and those that it started."""

    rss_bytes: int
    cpu_s: float

    @classmethod
    def of(cls, operator: chart.ChartOperator, *, alone: bool = False) -> Cost:
        """Now; `alone` leaves out the children, which come and go."""
        assert operator.process is not None
        pid = str(operator.process.pid)
        tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
        children = [child for task in tasks for child in (task / "children").read_text().split() if not alone]
        rss_kib, ticks = 0, 0
        for one in (pid, *children):
            status = pathlib.Path(f"/proc/{one}/status").read_text()
            rss_kib += next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
            fields = pathlib.Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return cls(rss_kib * 1024, ticks / os.sysconf("SC_CLK_TCK"))


def _objects(count: int) -> list[Object]:
    """Mostly plans, a harvest and a mix for each 25 of them, over all namespaces."""
    made: list[Object] = []
    for number in range(count):
        namespace = NAMESPACES[number % len(NAMESPACES)]
        if number % 25 == 23:
            made.append(builders.anchor_harvest(f"harvest-{number}", namespace, suspend=True))
        elif number % 25 == 24:
            mix = chart.mix(planRef={"name": f"plan-{(number // 500) * 500 + number % len(NAMESPACES)}"})
            made.append(mix | {"metadata": {"name": f"mix-{number}", "namespace": namespace}})
        else:
            made.append(builders.serving_plan(f"plan-{number}", namespace, load={"concurrencies": [number + 1]}))
    return made


def _create(plane: controlplane.ControlPlane, objects: list[Object]) -> None:
    with plane.http() as client, ThreadPoolExecutor(12) as pool:

        def post(given: Object) -> None:
            path = PATHS[given["kind"]].format(given["metadata"]["namespace"])
            client.post(path, json=given).raise_for_status()

        list(pool.map(post, objects))


def _operator(plane: controlplane.ControlPlane, count: int) -> chart.ChartOperator:
    """Of all namespaces, with the rights of the chart, and `count` objects in the cluster."""
    for name in ("operators", *NAMESPACES):
        plane.kubectl("create", "namespace", name)
    anchors = [builders.anchor_config_map("anchor-a", namespace) for namespace in NAMESPACES]
    objects = chart.render({"crds": {"install": False}}, namespace="operators")
    plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all([*objects, *anchors]))
    _create(plane, _objects(count))
    return chart.ChartOperator(plane, objects)


def _until_all_seen(operator: chart.ChartOperator, count: int, *, timeout_s: float) -> None:
    """Every object has a worker, none is due for a pass, and nothing is computed."""

    def holds() -> bool:
        return (
            operator.metric("inferasim_objects") == count
            and operator.metric("inferasim_objects_due") == 0
            and operator.metric("inferasim_computations_waiting") == 0
        )

    until(holds, f"{count} objects are seen", timeout_s=timeout_s)


def _versions(plane: controlplane.ControlPlane) -> dict[str, str]:
    """resourceVersion of every object of ours and of every ConfigMap."""
    accept = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
    found = {}
    with plane.http() as client:
        for path in (*(path.replace("/namespaces/{}", "") for path in PATHS.values()), "/api/v1/configmaps"):
            for item in client.get(path, headers=accept).raise_for_status().json()["items"]:
                metadata = item["metadata"]
                found[f"{path} {metadata['namespace']}/{metadata['name']}"] = metadata["resourceVersion"]
    return found


def _touch(plane: controlplane.ControlPlane, operator: chart.ChartOperator, count: int, round_: int) -> None:
    """A label of every object changes, and each gets a pass."""
    before = operator.metric("inferasim_reconciles_total")
    headers = {"Content-Type": "application/merge-patch+json"}
    with plane.http() as client, ThreadPoolExecutor(12) as pool:

        def patch(given: Object) -> None:
            metadata = given["metadata"]
            path = f"{PATHS[given['kind']].format(metadata['namespace'])}/{metadata['name']}"
            text = json.dumps({"metadata": {"labels": {"round": str(round_)}}})
            client.patch(path, content=text, headers=headers).raise_for_status()

        list(pool.map(patch, _objects(count)))
    until(lambda: operator.metric("inferasim_reconciles_total") >= before + count, "all are looked at", timeout_s=900)


@pytest.mark.slow
def test_memory_stays_flat(plane: controlplane.ControlPlane, record: Recorder) -> None:
    """Five rounds over 500 objects take no more memory than one."""
    operator = _operator(plane, 500)
    operator.start()
    try:
        _until_all_seen(operator, 500, timeout_s=3600)
        _touch(plane, operator, 500, 0)
        first = Cost.of(operator, alone=True)
        for round_ in range(1, 6):
            _touch(plane, operator, 500, round_)
        last = Cost.of(operator, alone=True)
    finally:
        operator.end()
    assert last.rss_bytes < 1.1 * first.rss_bytes
    record.row(
        "every one of 500 objects changed five times",
        outcome="memory stays flat",
        measured=f"{first.rss_bytes / 1e6:.0f} MB before, {last.rss_bytes / 1e6:.0f} MB after",
    )


def _peak_bytes(operator: chart.ChartOperator) -> int:
    """The most memory that the operator's process has had."""
    assert operator.process is not None
    status = pathlib.Path(f"/proc/{operator.process.pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.slow
def test_strangers_config_maps_cost_their_names_only(plane: controlplane.ControlPlane, record: Recorder) -> None:
    """A restart beside 80 MB in other people's ConfigMaps takes at most a tenth of that more than one without them."""
    operator = _operator(plane, 100)
    operator.start()
    try:
        _until_all_seen(operator, 100, timeout_s=600)
        peaks = []
        for strangers in (0, 200):
            assert operator.stop() == 0
            with plane.http() as client:
                for number in range(strangers):
                    manifest = {
                        "apiVersion": "v1",
                        "kind": "ConfigMap",
                        "metadata": {"name": f"stranger-{number}"},
                        "data": {"text": "x" * 400_000},
                    }
                    client.post(f"/api/v1/namespaces/{NAMESPACES[0]}/configmaps", json=manifest).raise_for_status()
            operator.start()
            _until_all_seen(operator, 100, timeout_s=600)
            peaks.append(_peak_bytes(operator))
    finally:
        operator.end()
    assert peaks[1] < peaks[0] + 8e6
    record.row(
        "operator restarted beside 80 MB of ConfigMaps that are none of its business",
        outcome="watches ask for metadata only",
        measured=f"at most {peaks[0] / 1e6:.0f} MB without them, {peaks[1] / 1e6:.0f} MB with them",
    )


@pytest.mark.slow
@pytest.mark.parametrize("count", [1_000, 10_000])
def test_a_restarted_operator_sees_all_objects(plane: controlplane.ControlPlane, record: Recorder, count: int) -> None:
    """Each once, and nothing is written; then it idles."""
    operator = _operator(plane, count)
    operator.start()
    try:
        _until_all_seen(operator, count, timeout_s=7200)
        assert operator.stop() == 0
        before = _versions(plane)
        operator.start()
        took_s = seconds(lambda: _until_all_seen(operator, count, timeout_s=1800))
        passes = operator.metric("inferasim_reconciles_total")
        started = Cost.of(operator)
        assert _versions(plane) == before
        threading.Event().wait(IDLE_S)
        idle = Cost.of(operator)
    finally:
        operator.end()
    if count == 1_000:
        assert idle.rss_bytes < IDLE_LIMIT_BYTES
    quiet_percent = 100.0 * (idle.cpu_s - started.cpu_s) / IDLE_S
    # The minute is shorter than the resync: its share is what the passes after the start have cost, start and all.
    resync_percent = 100.0 * started.cpu_s / passes * count / RESYNC_S
    record.row(
        f"operator restarted beside {count:,} objects in {len(NAMESPACES)} namespaces",
        outcome="all are looked at, nothing is written; then it idles",
        measured=f"all seen after {took_s:.0f} s ({passes:,.0f} passes, {started.cpu_s:.0f} s of CPU); idle: "
        f"{idle.rss_bytes / 1e6:.0f} MB, {quiet_percent:.1f} % of a core and {resync_percent:.1f} % for the resync",
    )
