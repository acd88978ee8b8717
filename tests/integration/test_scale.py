"""Thousands of objects on a real API server: how soon a restarted operator has seen all, what an idle one costs."""

from __future__ import annotations

import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import yaml

from e2e import controlplane
from tests import builders
from tests.integration import chart
from tests.integration.harness import ROOT, Object, until

NAMESPACES = tuple(f"team-{number}" for number in range(20))
IDLE_S = 60.0
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
    """What a process used."""

    rss_bytes: int
    cpu_s: float

    @classmethod
    def of(cls, pid: int) -> Cost:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        rss_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return cls(rss_kib * 1024, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


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


def _timed(wait: Callable[[], None]) -> float:
    started_s = time.monotonic()
    wait()
    return time.monotonic() - started_s


def _pid(operator: chart.ChartOperator) -> int:
    assert operator.process is not None
    return operator.process.pid


@pytest.mark.slow
@pytest.mark.parametrize("count", [1_000, 10_000])
def test_a_restarted_operator_sees_all_objects(plane: controlplane.ControlPlane, count: int) -> None:
    """And writes nothing; then it idles."""
    operator = _operator(plane, count)
    operator.start()
    try:
        first_s = _timed(lambda: _until_all_seen(operator, count, timeout_s=3600))
        print(
            f"\n{count} new objects: {first_s:.0f} s, {Cost.of(_pid(operator))}, passes",
            operator.metric("inferasim_reconciles_total"),
        )
        operator.end()
        operator.start()
        again_s = _timed(lambda: _until_all_seen(operator, count, timeout_s=900))
        before = Cost.of(_pid(operator))
        print(
            f"{count} objects after a restart: {again_s:.0f} s, {before}, passes",
            operator.metric("inferasim_reconciles_total"),
            operator.metric("inferasim_reconcile_seconds_sum"),
        )
        threading.Event().wait(IDLE_S)
        after = Cost.of(_pid(operator))
        idle_percent = 100.0 * (after.cpu_s - before.cpu_s) / IDLE_S
        print(f"idle: {after.rss_bytes / 1e6:.0f} MB, {idle_percent:.1f} % of a core")
    finally:
        print(operator.text[-2000:])
        operator.end()
