"""Settings, health and references of the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferasim_operator import __main__ as program
from inferasim_operator import settings
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.health import HealthServer, dead_watches
from inferasim_operator.engine.rbac import Rule, policy_rules
from inferasim_operator.engine.references import References
from simcore.errors import InputError


def test_settings_come_from_the_environment() -> None:
    """Each variable, and the lease beside the first namespace."""
    found = settings.from_environment(
        {"INFERASIM_NAMESPACES": "a,b", "INFERASIM_COMPUTE_WORKERS": "2", "INFERASIM_LEASE_SECONDS": "30"}
    )
    assert (found.namespaces, found.lease_namespace) == (("a", "b"), "a")
    assert (found.compute_workers_count, found.lease_duration_s) == (2, 30)
    assert found.identity != settings.from_environment({}).identity


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("INFERASIM_LEASE_SECONDS", "soon"),
        ("INFERASIM_LEASE_SECONDS", "1"),
        ("INFERASIM_HEALTH_PORT", "70000"),
        ("INFERASIM_COMPUTE_WORKERS", "0"),
        ("INFERASIM_COMPUTE_TIMEOUT_SECONDS", "0"),
    ],
)
def test_bad_settings_are_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One clear line, exit code 2."""
    with pytest.raises(InputError, match="must be"):
        settings.from_environment({name: value})
    monkeypatch.setenv(name, value)
    assert program.main(["run", "--namespace", "x"]) == 2


def test_health_tells_a_dead_watch() -> None:
    """Alive with its watcher task, not without it (C01); served by the loop itself."""

    async def scenario() -> None:
        problems: list[str] = []
        server = HealthServer("127.0.0.1", 0, lambda: problems)
        port = await server.start()
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
            problems.append("no live watch of jobs")
            answer = await client.get(f"http://127.0.0.1:{port}/healthz")
            assert (answer.status_code, answer.text) == (500, "no live watch of jobs\n")
            assert "inferasim_reconciles" in (await client.get(f"http://127.0.0.1:{port}/metrics")).text
            assert (await client.get(f"http://127.0.0.1:{port}/other")).status_code == 404
        await server.stop()
        forever = asyncio.Event()
        watcher = asyncio.create_task(forever.wait(), name="watcher for jobs.v1.batch@ns")
        assert dead_watches(["jobs", "configmaps"]) == ["configmaps"]
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        assert dead_watches(["jobs"]) == ["jobs"]

    asyncio.run(scenario())


def test_the_process_loads_no_simulator() -> None:
    """Half of an idle operator was numba, imported for one function; searches run in processes of their own."""
    code = "import sys, inferasim_operator.__main__; print(*sorted({'numba', 'numpy', 'scipy'} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "\n"


def test_references() -> None:
    """Who is woken by what; within a namespace; forgotten when noted empty."""
    index = References()
    key = ObjectKey("ns", "plan")
    index.note("ServingPlan", key, [("ConfigMap", "m")])
    assert index.referrers("ServingPlan", "ns", ("ConfigMap", "m")) == [key]
    assert index.referrers("ServingPlan", "other", ("ConfigMap", "m")) == []
    assert index.referrers("DeploymentMix", "ns", ("ConfigMap", "m")) == []
    index.note("ServingPlan", key, [])
    assert index.referrers("ServingPlan", "ns", ("ConfigMap", "m")) == []


_KEYS = [ObjectKey("ns", "a"), ObjectKey("ns", "b"), ObjectKey("other", "a")]
_TARGETS = [("ConfigMap", "m"), ("ConfigMap", "n"), ("ServingPlan", "m")]


@given(st.lists(st.tuples(st.sampled_from(_KEYS), st.frozensets(st.sampled_from(_TARGETS)))))
def test_references_are_what_was_noted_last(notes: list[tuple[ObjectKey, frozenset[tuple[str, str]]]]) -> None:
    """Both directions of the index agree, whatever was noted in between."""
    index = References()
    for key, targets in notes:
        index.note("ServingPlan", key, targets)
    last = dict(notes)
    for namespace in ("ns", "other"):
        for target in _TARGETS:
            want = sorted(key for key, found in last.items() if key.namespace == namespace and target in found)
            assert index.referrers("ServingPlan", namespace, target) == want


def test_rules_merge_and_refuse_wildcards() -> None:
    """One entry per resource; no `*`, no verb without a reason."""
    rules = [Rule("", "configmaps", ("get",), "a"), Rule("", "configmaps", ("create", "get"), "b")]
    assert policy_rules(rules) == [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create"]}]
    for verbs, why in ((("*",), "a"), ((), "a"), (("get",), "")):
        with pytest.raises(ValueError, match="no wildcard"):
            Rule("", "configmaps", verbs, why)
