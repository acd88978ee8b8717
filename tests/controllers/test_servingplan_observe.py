"""What a plan's `observe` reads of nodes, shards and Jobs; and the worker that fills a shard."""

from __future__ import annotations

import base64
import datetime
import gzip
import json
import pathlib
from typing import Any

import pytest

from inferasim_operator import packing, planning, worker
from inferasim_operator.engine.actions import ObjectKey, Reference
from inferasim_operator.engine.kind import Context
from inferasim_operator.errors import InvalidError, UnavailableError
from inferasim_operator.kinds.servingplan import render, search_job
from inferasim_operator.kinds.servingplan.observe import observe
from inferasim_operator.kinds.servingplan.observe_harvests import ANY_HARVEST
from inferasim_operator.kinds.servingplan.plan import plan
from simcore.errors import InputError
from tests import builders
from tests.fake_cluster import FakeCluster

KEY = ObjectKey("default", "plan")
NOW = datetime.datetime(2026, 11, 30, 12, 0, 0, tzinfo=datetime.UTC)
REQUEST = {"spec": builders.serving_plan(load={"concurrencies": [1]})["spec"], "anchors": {}}
TARGET = Reference("v1", "ConfigMap", "default", "shard")


def _node(name: str, gpus: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"amd.com/gpu.device-id": "75a3"} | labels},
        "status": {"allocatable": {"amd.com/gpu": gpus}},
    }


def _context(*objects: dict[str, Any], **changes: Any) -> Context:
    return Context(FakeCluster(builders.anchor_config_map("anchor-a"), *objects), **changes)


def test_discovery_counts_what_all_nodes_have() -> None:
    """Two nodes with 8 and 6 usable GPUs are two nodes of 6; a split one, one without GPUs, one of another kind: no."""
    partition = {"amd.com/gpu.compute-memory-partition": "cpx_nps1"}
    nodes = (
        _node("a", "8"),
        _node("b", "6"),
        _node("split", "8", **partition),
        _node("broken", "0"),
        _node("other", "8", **{"amd.com/gpu.device-id": "0000"}),
    )
    manifest = builders.serving_plan(cluster={"accelerator": "MI355X", "discovery": {}})
    context = _context(builders.live(manifest), *nodes, serves_all_namespaces=True)
    observed = observe(context, KEY)
    assert observed is not None
    assert observed.request is not None
    assert observed.request["spec"]["cluster"] == {"accelerator": "MI355X", "nodes": 2, "gpusPerNode": 6}
    assert plan(observed, NOW).status.to_dict()["discovered"] == {"nodes": 2, "gpusPerNode": 6}
    none = observe(_context(builders.live(manifest), serves_all_namespaces=True), KEY)
    assert none is not None
    assert none.nodes is not None
    assert "no node with a healthy MI355X" in none.nodes.problem
    narrow = observe(_context(builders.live(manifest), *nodes), KEY)
    assert narrow is not None
    assert narrow.nodes is not None
    assert not narrow.nodes.may_list


def test_a_search_job_from_start_to_merge() -> None:
    """Made, seen, its shards filled by workers, merged into the answer of the unsharded question; then cleaned up."""
    manifest = builders.serving_plan(search={"shards": 2}, load={"concurrencies": [1, 8]})
    context = _context(builders.live(manifest), worker_image="example.test/op:1")
    cluster = context.client
    assert isinstance(cluster, FakeCluster)

    def step() -> Any:
        observed = observe(context, KEY)
        assert observed is not None
        decided = plan(observed, NOW)
        for action in decided.actions:
            if hasattr(action, "manifest"):
                cluster.create(action.manifest)
            else:
                cluster.delete(action.reference, uid=action.uid)
        return observed, decided

    _, made = step()
    assert len(made.actions) == 7
    observed, _ = step()
    assert observed.search.job is not None
    assert observed.search.done == ()
    job = observed.search.job["metadata"]["name"]
    request = json.loads(
        packing.unpack(cluster.get("v1", "ConfigMap", "default", f"{job}-request")["binaryData"]["request.json.gz"])
    )
    assert request == observed.request
    for index in (1, 0):
        target = Reference("v1", "ConfigMap", "default", search_job.shard_name(job, index))
        assert worker.run(request, cluster, target, index=index, count=2)
        writes = cluster.writes
        assert not worker.run(request, cluster, target, index=index, count=2), "done before"
        assert cluster.writes == writes
    observed, decided = step()
    assert decided.computation is not None
    answer = planning.compute_plan(decided.computation.request)
    assert answer == planning.compute_plan(request)

    cluster.create(render.result_config_map(observed.raw, observed.digest, answer))
    _, decided = step()
    assert len(decided.actions) == 4, "the Job, the question, two shards"
    _, decided = step()
    assert decided.actions == ()
    assert decided.status.selected


def test_an_answered_plan_asks_for_jobs_only_once_one_was_seen() -> None:
    """A Job that an earlier process left is found when its event says so; before that no request is spent on it."""
    manifest = builders.live(builders.serving_plan(search={"shards": 2}))
    context = _context(manifest, worker_image="example.test/op:1")
    cluster = context.client
    assert isinstance(cluster, FakeCluster)
    observed = observe(context, KEY)
    assert observed is not None
    for action in plan(observed, NOW).actions:
        cluster.create(action.manifest)  # type: ignore[union-attr]
    answer = planning.compute_plan(observed.request)
    cluster.create(render.result_config_map(observed.raw, observed.digest, answer))
    restarted = _context(*cluster.objects.values(), worker_image="example.test/op:1")

    def kinds_of_leftovers() -> list[str]:
        found = observe(restarted, KEY)
        assert found is not None
        assert found.result is not None
        return sorted(live["kind"] for live in found.leftovers)

    assert kinds_of_leftovers() == []
    restarted.references.note_parent("ServingPlan", KEY)
    assert kinds_of_leftovers() == ["ConfigMap", "ConfigMap", "ConfigMap", "Job"]


def test_an_edit_drops_the_job_of_the_former_question() -> None:
    """Another digest: the old Job and shards are left over, the new ones are made."""
    manifest = builders.serving_plan(search={"shards": 2})
    context = _context(builders.live(manifest), worker_image="example.test/op:1")
    cluster = context.client
    assert isinstance(cluster, FakeCluster)
    observed = observe(context, KEY)
    assert observed is not None
    for action in plan(observed, NOW).actions:
        cluster.create(action.manifest)  # type: ignore[union-attr]
    cluster.put(builders.live(builders.serving_plan(search={"shards": 2}, load={"concurrencies": [2]})))
    observed = observe(context, KEY)
    assert observed is not None
    assert [live["kind"] for live in observed.leftovers] == ["ConfigMap", "ConfigMap", "ConfigMap", "Job"]
    assert observed.search is not None
    assert observed.search.job is None


class TestWorker:
    """The pod's program."""

    def test_it_waits_for_a_server_that_is_away(self) -> None:
        """Five pauses, each twice as long; what is refused for good is not asked again."""
        cluster, pauses = FakeCluster(), []
        cluster.broken["merge"] = UnavailableError("503")
        with pytest.raises(UnavailableError):
            worker.run(REQUEST, cluster, TARGET, index=0, count=1, sleep=pauses.append)
        assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]
        cluster.broken["merge"] = InvalidError("422", status=422)
        with pytest.raises(InvalidError):
            worker.run(REQUEST, cluster, TARGET, index=0, count=1, sleep=pauses.append)
        assert len(pauses) == 5

    def test_a_result_that_no_config_map_holds_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With what to do about it."""
        cluster = FakeCluster(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shard", "namespace": "default"}}
        )
        monkeypatch.setattr(packing, "LIMIT_BYTES", 10)
        with pytest.raises(InputError, match="take more shards"):
            worker.run(REQUEST, cluster, TARGET, index=0, count=1)

    @pytest.mark.parametrize("content", [b"", b"[]", b"{}", gzip.compress(b"{")])
    def test_bad_files_are_refused(self, content: bytes, tmp_path: pathlib.Path) -> None:
        """Exit code 2 with one line."""
        path = tmp_path / ("request.json.gz" if content[:2] == b"\x1f\x8b" else "request.json")
        path.write_bytes(content)
        arguments = [f"--request={path}", "--shard=0", "--shards=1", "--config-map=a/b"]
        assert worker.main([*arguments, "--kubeconfig=/nonexistent"]) == 2
        assert worker.main([*arguments[:-1], "--config-map=../../etc"]) == 2


def test_discovery_needs_a_cluster() -> None:
    """The command line says so in one line."""
    with pytest.raises(InputError, match="needs the operator in a cluster"):
        planning.prepare({"spec": builders.serving_plan(cluster={"accelerator": "MI355X", "discovery": {}})["spec"]})


def test_the_key_of_a_language_model_is_read_where_the_plan_names_it() -> None:
    """From its Secret and key; a missing one is said, an answered plan reads none, and a sweep reads none."""
    agent = {"url": "https://llm.example.test/v1", "model": "m", "secret": {"name": "llm", "key": "token"}}
    manifest = builders.live(builders.serving_plan(search={"method": "Agent", "agent": agent}))

    def secret(**data: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "llm", "namespace": "default"},
            "data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()},
        }

    def seen(*objects: dict[str, Any]) -> Any:
        observed = observe(_context(*objects), KEY)
        assert observed is not None
        return observed

    found = seen(manifest, secret(token="sk-1\n", other="x"))
    assert found.agent_key.value == "sk-1"
    assert "sk-1" not in repr(found)
    assert "does not exist" in seen(manifest).agent_key.problem
    assert "has no key token" in seen(manifest, secret(other="x")).agent_key.problem
    assert seen(builders.live(builders.serving_plan()), secret(token="sk-1")).agent_key is None
    kept = render.result_config_map(manifest, found.digest, builders.plan_result())
    assert seen(manifest, secret(token="sk-1"), kept).agent_key is None


def test_the_ledger_of_a_search_under_way_is_found_and_old_ones_go() -> None:
    """By its question's digest; of an answered plan, or of another question, it is a leftover; a forged one is said."""
    agent = {"url": "https://llm.example.test/v1", "model": "m"}
    manifest = builders.live(builders.serving_plan(search={"method": "Agent", "agent": agent}))

    def seen(*objects: dict[str, Any]) -> Any:
        observed = observe(_context(manifest, *objects), KEY)
        assert observed is not None
        return observed

    digest = seen().digest
    mine, old = (render.ledger_config_map(manifest, name, "line\n") for name in (digest, "e" * 40))
    found = seen(mine, old)
    assert found.ledger.text == "line\n"
    assert [item["metadata"]["name"] for item in found.leftovers] == [old["metadata"]["name"]]
    answered = seen(mine, render.result_config_map(manifest, digest, builders.plan_result()))
    assert answered.ledger is None
    assert [item["metadata"]["name"] for item in answered.leftovers] == [mine["metadata"]["name"]]
    for broken in ({"binaryData": {}}, {"binaryData": {render.LEDGER_KEY: "AAAA"}}, {"data": {"inputDigest": "x"}}):
        assert "delete it to search anew" in seen({**mine, **broken}).ledger.problem


def test_a_trace_of_a_config_map_is_part_of_the_question() -> None:
    """As text or packed; a missing one is said; another trace is another question."""
    manifest = builders.live(builders.serving_plan(workload={"trace": {"configMap": {"name": "week"}}}))

    def config_map(**content: Any) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "week", "namespace": "default"},
            **content,
        }

    def seen(*objects: dict[str, Any]) -> Any:
        observed = observe(_context(manifest, *objects), KEY)
        assert observed is not None
        return observed

    plain = seen(config_map(data={"trace.jsonl": "{}\n"}))
    assert base64.b64decode(plain.request["trace"]["data"]) == b"{}\n"
    packed = seen(config_map(binaryData={"trace.jsonl": packing.pack("{}\n")}))
    assert gzip.decompress(base64.b64decode(packed.request["trace"]["data"])) == b"{}\n"
    assert plain.digest != packed.digest
    assert "does not exist" in seen().trace.problem
    assert seen().request is None
    assert "has no key trace.jsonl" in seen(config_map(data={"other": "x"})).trace.problem


def _harvest(name: str, **spec: Any) -> dict[str, Any]:
    return builders.live(builders.anchor_harvest(name, **spec))


def _ended(name: str, condition: str) -> dict[str, Any]:
    live = _harvest(name)
    live["status"] = {"conditions": [{"type": condition, "status": "True", "observedGeneration": 1}]}
    return live


def test_harvests_that_may_bring_the_missing_anchor() -> None:
    """Under way, of the plan's accelerator, engine and model; looked for only while no anchor is of its accelerator."""
    edited = _ended("edited", "Ready")
    edited["metadata"]["generation"] = 2  # what is said of the former spec says nothing of this one
    harvests = (
        _harvest("a"),
        edited,
        _ended("done", "Ready"),
        _ended("failed", "Stalled"),
        _harvest("paused", suspend=True),
        _harvest("other-gpu", accelerator={"product": "MI300X"}),
        _harvest("other-model", model={"name": "Qwen3-32B", "source": {"hub": {"id": "Qwen/Qwen3-32B"}}}),
    )
    context = Context(FakeCluster(builders.live(builders.serving_plan()), *harvests))
    observed = observe(context, KEY)
    assert observed is not None
    assert observed.harvests == ("a", "edited")
    assert context.references.referrers("ServingPlan", "default", ANY_HARVEST) == [KEY]
    context = _context(builders.live(builders.serving_plan()), *harvests)
    observed = observe(context, KEY)
    assert observed is not None
    assert observed.harvests == ()
    assert context.references.referrers("ServingPlan", "default", ANY_HARVEST) == []
