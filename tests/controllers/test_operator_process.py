"""Settings, health and references of the process."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import pathlib
import subprocess
import sys
import threading
import typing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferasim_operator import __main__ as program
from inferasim_operator import process, settings
from inferasim_operator.engine.actions import ObjectKey, Reference
from inferasim_operator.engine.client import Client
from inferasim_operator.engine.health import HealthServer, dead_watches
from inferasim_operator.engine.lease import Lease
from inferasim_operator.engine.rbac import Rule, policy_rules
from inferasim_operator.engine.references import References
from inferasim_operator.errors import LeaseLostError
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
        obstacles = ["the API server has not answered yet"]
        server = HealthServer("127.0.0.1", 0, lambda: problems, lambda: obstacles)
        port = await server.start()
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
            answer = await client.get(f"http://127.0.0.1:{port}/readyz")
            assert (answer.status_code, answer.text) == (500, f"{obstacles[0]}\n")
            obstacles.clear()
            assert (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
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


class _Api(http.server.BaseHTTPRequestHandler):
    """Answers each request with what the test has put down; notes what was asked, and how."""

    answers: typing.ClassVar[list[tuple[int, dict[str, Any]]]]
    asked: typing.ClassVar[list[tuple[str, str, str]]]

    def do_GET(self) -> None:
        self.asked.append((self.command, self.path, self.headers["Accept"]))
        status, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PATCH = do_GET  # noqa: N815 - the name is http.server's

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextlib.contextmanager
def _api(*answers: tuple[int, dict[str, Any]]) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """An API server's address, and what it was asked; the last answer is given again and again."""
    handler = type("Handler", (_Api,), {"answers": list(answers), "asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler.asked
    server.shutdown()
    server.server_close()
    thread.join()


def _client(url: str, tmp_path: pathlib.Path) -> Client:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file = tmp_path / "kubeconfig.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    return Client.connect(manager="test", kubeconfig=str(file))


SERVED = {"resources": [{"kind": kind} for kind in ("AnchorHarvest", "ServingPlan", "DeploymentMix")]}


def test_a_start_waits_for_the_server_and_refuses_one_without_the_crds(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 is waited out; kinds that are not served are an error; a stop ends the waiting."""
    monkeypatch.setattr(process, "RETRY_S", 0.0)
    stop = threading.Event()
    with _api((503, {}), (429, {}), (200, SERVED)) as (url, asked):
        assert process.await_crds(_client(url, tmp_path), stop)
        assert len(asked) == 3
    with _api((200, {"resources": [{"kind": "ServingPlan"}]})) as (url, _), pytest.raises(process.CrdError) as caught:
        process.await_crds(_client(url, tmp_path), stop)
    assert "does not serve AnchorHarvest, DeploymentMix" in str(caught.value)
    stop.set()
    assert not process.await_crds(_client("http://127.0.0.1:9", tmp_path), stop)


def test_a_lease_that_is_renewed_meanwhile_has_not_expired() -> None:
    """Asked again at each end of what was left, until nothing is; the thread that renews it is not waited for."""
    left_s = iter((0.001, 0.001, 0.0))
    leash = cast(Lease, SimpleNamespace(left_s=lambda: next(left_s)))
    asyncio.run(process._until_expired(leash))
    assert list(left_s) == []


def test_a_process_whose_lease_ran_out_sends_no_write(tmp_path: pathlib.Path) -> None:
    """It may have been stopped in the middle of a pass, while another began to lead."""
    with _api((200, {"metadata": {}})) as (url, asked):
        client = _client(url, tmp_path)
        target = Reference("v1", "ConfigMap", "ns", "a")
        client.merge(target, {})
        client.may_write = lambda: False
        with pytest.raises(LeaseLostError, match="not sent, because another instance may lead"):
            client.merge(target, {})
        client.get("v1", "ConfigMap", "ns", "a")
    assert [method for method, _, _ in asked] == ["PATCH", "GET"]


def test_watches_ask_for_metadata_only(tmp_path: pathlib.Path) -> None:
    """A list as a list of metadata, a watch as single ones: the server refuses each of them for the other."""

    async def scenario(url: str) -> None:
        session = program._session(_client(url, tmp_path).connection()).aiohttp_session
        async with session:
            for query in ("", "?watch=true&resourceVersion=1"):
                async with session.get(f"{url}/api/v1/configmaps{query}") as answer:
                    await answer.read()

    with _api((200, {})) as (url, asked):
        asyncio.run(scenario(url))
    assert [accept for _, _, accept in asked] == [
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
    ]


@pytest.mark.parametrize(("items", "found"), [(None, []), ([], []), ([{"metadata": {"name": "a"}}], ["a"])], ids=str)
def test_an_empty_list_of_metadata_is_a_list(tmp_path: pathlib.Path, items: object, found: list[str]) -> None:
    """As an API server (1.36) answers where there is nothing: a null, which would end kopf's watch."""
    answer = {"kind": "PartialObjectMetadataList", "metadata": {"resourceVersion": "1"}, "items": items}

    async def scenario(url: str) -> Any:
        async with program._session(_client(url, tmp_path).connection()).aiohttp_session as session:
            return await (await session.get(f"{url}/apis/batch/v1/jobs")).json()

    with _api((200, answer)) as (url, _):
        told = asyncio.run(scenario(url))
    assert [item["metadata"]["name"] for item in told["items"]] == found


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


def test_parents_are_known_until_they_go() -> None:
    """What an event of a child notes about its owner; of that kind and name only."""
    index, key = References(), ObjectKey("ns", "plan")
    assert not index.is_parent("ServingPlan", key)
    index.note_parent("ServingPlan", key)
    index.note("ServingPlan", key, [])
    assert index.is_parent("ServingPlan", key)
    assert not index.is_parent("AnchorHarvest", key)
    index.forget("ServingPlan", key)
    assert not index.is_parent("ServingPlan", key)


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
