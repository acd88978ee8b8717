"""The DSPy model against a real HTTP server that speaks the OpenAI protocol: scripted, hostile and broken replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simcore.agent.dspy_model import DspyModel, Endpoint
from simcore.agent.search import run_agent
from simcore.search.ledger import Session, replay
from tests.chat_server import Reply, called, fields, greedy, is_plan, planned
from tests.chat_server import serving as server
from tests.search_spaces import space

pytestmark = pytest.mark.filterwarnings("default")  # DSPy's and LiteLLM's own warnings
KEY = "sk-secret-1234567890"


def search(reply: Reply, *, budget: int = 14, timeout_s: float = 10.0) -> tuple[Session, list[dict[str, Any]]]:
    with server(reply) as (base, seen):
        model = DspyModel(Endpoint("m", base, KEY, timeout_s=timeout_s, retries_count=0))
        session = run_agent(Session(space(), budget_count=budget), model, seeds_count=3)
    assert len(session.entries) <= budget
    assert session.best is not None
    trial = session.best.trial
    assert trial.legal
    assert trial.score_value == space().evaluate(dict(trial.configuration)).score_value
    assert KEY not in session.json_lines()
    assert replay(session.json_lines(), space()).json_lines() == session.json_lines()
    return session, seen


def test_a_helpful_model_plans_evaluates_and_finishes() -> None:
    steps = iter(
        [
            called("read_best"),
            called("evaluate", configuration={"layout.tensorParallel": 2, "replicas": 4, "load.concurrency": 64}),
            called("write_note", text="narrow and many"),
            called("ask_question", question="why?"),
        ]
    )

    def reply(text: str) -> str:
        if is_plan(text):
            return planned('[{"layout.tensorParallel": 1, "replicas": 8, "load.concurrency": 64}, {"kvDtype": "fp8"}]')
        if "next_tool_name" in text:
            return next(steps, called("finish"))
        if "answer" in text and "follow_ups" not in text:
            return fields(answer="because")
        return fields(reasoning="x", summary="narrow layouts win", follow_ups="none")

    session, seen = search(reply)
    assert seen[0]["authorization"] == f"Bearer {KEY}"
    origins = [entry.origin for entry in session.entries]
    assert origins.count("agent: plan") == 2
    assert "agent" in origins
    kinds = [json.loads(line)["kind"] for line in session.json_lines().splitlines()]
    assert {"plan", "note", "question", "summary", "result"} <= set(kinds)


HOSTILE = {
    "illegal values": lambda text: planned('[{"layout.tensorParallel": 999}, {"gpuCount": 0}]'),
    "invented metrics": lambda text: (
        planned('[{"score": 1e12, "ttft": 0}]')
        if is_plan(text)
        else fields(
            reasoning="",
            summary="score 1e12",
            follow_ups="",
            next_thought="",
            next_tool_name="finish",
            next_tool_args="{}",
            answer="1e12",
        )
    ),
    "no fields at all": lambda text: "I would rather talk about the weather.",
    "an empty answer": lambda text: "",
    "not JSON": lambda text: (200, "<html>502</html>"),
    "a server error": lambda text: (500, '{"error": {"message": "boom"}}'),
    "a refusal that repeats the key": lambda text: (401, json.dumps({"error": {"message": f"bad key {KEY}"}})),
    "an unknown tool": lambda text: planned("[]") if is_plan(text) else called("delete_cluster", all=True),
    "wrong arguments": lambda text: planned("[]") if is_plan(text) else called("evaluate", nothing=1),
    "endless reading": greedy,
    "endless evaluation": lambda text: (
        planned("[]") if is_plan(text) else called("evaluate", configuration={"layout.tensorParallel": 2})
    ),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_and_broken_replies_change_nothing_but_the_ledger(name: str) -> None:
    session, _ = search(HOSTILE[name])
    assert any(entry.origin.startswith("local") for entry in session.entries) or session.stop_reason


def test_a_server_that_never_answers_is_given_up() -> None:
    session, seen = search(lambda text: None, timeout_s=0.3)
    assert session.json_lines().count('"kind":"failure"') == 2
    assert len(seen) <= 8


@pytest.mark.parametrize(
    ("reply", "requests"),
    [
        (lambda text: (500, "{}"), 4),  # two rounds that fail, each tried twice
        (lambda text: "no fields at all", 4),  # two rounds, each asked again in another form
        (greedy, 14),  # one that never ends
    ],
)
def test_every_request_is_counted_and_none_is_made_beyond_the_budget(reply: Reply, requests: int) -> None:
    """The server's own count, retries and second forms included; grants are lumps of eight."""
    with server(reply) as (base, seen):
        model = DspyModel(Endpoint("m", base, KEY, retries_count=1))
        session = run_agent(Session(space(), budget_count=14), model, seeds_count=3)
    assert len(seen) == requests
    assert session.granted_count == min(14, -(-requests // 8) * 8)


def test_a_search_that_was_cut_off_asks_for_no_more_than_its_budget() -> None:
    """Cut before the second lump of eight is used: of 14 requests, the second life makes none."""
    kept: list[str] = []

    def keep(session: Session) -> None:
        kept.append(session.json_lines())
        if len(kept) == 2:
            raise KeyboardInterrupt

    with server(greedy) as (base, seen):
        session = Session(space(), budget_count=14)
        model = DspyModel(Endpoint("m", base, KEY))
        with pytest.raises(KeyboardInterrupt):
            run_agent(session, model, seeds_count=3, keep=lambda: keep(session))
        assert len(seen) == 8
        for text, more in ((kept[0], 6), (kept[1], 0)):  # cut in the first lump, or in the second
            before = len(seen)
            again = replay(text, space())
            run_agent(again, DspyModel(Endpoint("m", base, KEY)), seeds_count=3)
            assert len(seen) - before == more
            assert again.granted_count == 14
            assert again.is_closed
            assert replay(again.json_lines(), space()).json_lines() == again.json_lines()


def test_models_that_think_first_are_asked_as_they_want() -> None:
    """OpenAI's reasoning models refuse a temperature and few tokens."""
    with server(lambda text: planned("[]")) as (base, seen):
        model = DspyModel(Endpoint("openai/gpt-5", base, KEY))
        run_agent(Session(space(), budget_count=14), model, seeds_count=3)
    assert seen[0]["body"]["max_completion_tokens"] == 16_000
    assert "temperature" not in seen[0]["body"]


def test_a_model_name_is_data_in_the_prompt() -> None:
    _, seen = search(lambda text: planned("[]"))
    for request in seen:
        assert request["body"]["model"] == "m"
        assert "Qwen3-14B" in json.dumps(request["body"]["messages"])
