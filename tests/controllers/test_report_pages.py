"""The pages hold the answer, the interval and the doubts; nothing can be injected; nothing is fetched."""

from __future__ import annotations

import copy
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferasim_operator.report import charts, explain, flags, numbers, plan, run, scale
from inferasim_operator.report.html import tag
from tests.page_rules import Dom, assert_page

ROW = {
    "engine": "SGLang",
    "layout": {"tensorParallel": 4, "attentionDataParallel": 4},
    "replicas": 1,
    "gpus": 4,
    "concurrency": 64,
    "ttftMilliseconds": 152,
    "tpotMicroseconds": 6310,
    "tokensPerSecondPerGpu": 2480,
    "tokensPerSecondPerUser": 158,
    "interval80": {
        "ttftMilliseconds": {"low": 102, "high": 1228},
        "tpotMicroseconds": {"low": 5186, "high": 7676},
        "tokensPerSecondPerGpu": {"low": 2076, "high": 2963},
    },
}
PREDICTED = ("ttftMilliseconds", "tpotMicroseconds", "tokensPerSecondPerGpu", "tokensPerSecondPerUser", "interval80")
CONFIGURATION = {
    "engine": "SGLang",
    "layout": ROW["layout"],
    "replicas": 1,
    "concurrency": 64,
    "promptTokens": 1024,
    "outputTokens": 512,
    "accelerator": "MI355X",
    "image": "example.test/sglang:1",
}
RESULT: dict[str, Any] = {
    "feasible": True,
    "selected": [
        {
            "tier": "realtime",
            "configuration": CONFIGURATION,
            "gpus": 4,
            "predicted": {key: ROW[key] for key in PREDICTED},
            "headroomPermille": 57,
            "reason": "within 5 % of the best",
            "source": {"mode": "Anchored", "anchor": "anchor-a", "flags": ["extrapolated-width", "not-harvested"]},
        }
    ],
    "binding": [
        {
            "tier": "instant",
            "limit": "interactivity",
            "detail": "253 tokens/s per user is the most",
            "nearest": {"configuration": CONFIGURATION, "predicted": {key: ROW[key] for key in PREDICTED}},
        }
    ],
    "front": [ROW, {**ROW, "concurrency": 1, "tokensPerSecondPerGpu": 250, "tokensPerSecondPerUser": 253}],
    "shortList": {"realtime": [ROW]},
    "candidates": {"scored": 12, "total": 14, "simulations": 9, "refused": 1},
    "refusals": [{"engine": "SGLang", "layout": {"tensorParallel": 3}, "rule": "tp-divides-heads", "detail": "32 / 3"}],
    "recommendedHarvests": [
        {"engine": "SGLang", "accelerator": "MI355X", "layout": {"tensorParallel": 8}, "reason": "its interval is wide"}
    ],
    "effective": {
        "model": "Llama-3.1-8B",
        "gpuBudget": 8,
        "mode": "Anchored",
        "tiers": [
            {"name": "realtime", "tokensPerSecondPerUser": 150, "ttftMilliseconds": 1000},
            {"name": "instant", "tokensPerSecondPerUser": 5000, "ttftMilliseconds": None},
        ],
    },
    "provenance": {"inferasimVersion": "0.1.0", "anchorDigests": ["sha256:abcdefgh"]},
}
LATENCY = {"mean": 21.0, "median": 20.0, "p90": 30.0, "p99": None, "p999": None}
PREDICTION: dict[str, Any] = {
    "model": "Llama-3.1-8B",
    "engine": "SGLang",
    "engineVersion": None,
    "accelerator": "MI355X",
    "promptTokens": 8192,
    "outputTokens": 1024,
    "layout": "TP1",
    "gpus": 1,
    "concurrency": 64,
    "requests": 640,
    "mode": "anchored",
    "source": {
        "anchor": "a",
        "anchorDigest": "sha256:x",
        "laws": {},
        "refusedAnchors": {"b": ["no"]},
        "assumed": ["z"],
    },
    "flags": ["queueing"],
    **dict.fromkeys(("ttftMs", "tpotMs", "itlMs", "e2eMs"), LATENCY),
    "throughputTokensPerSecond": 2000.0,
    "throughputTokensPerSecondPerGpu": 1000.0,
    "interactivityTokensPerSecond": 46.2,
    "requestsPerSecond": 2.43,
    "interval80": {"ttftMs": [19.0, 23.0], "tpotMs": [20.0, 22.0], "throughputTokensPerSecond": [1800.0, 2200.0]},
    "hitRates": {"prefix": None, "replicas": [None]},
    "queueing": {"meanQueueSeconds": 1.5},
    "memory": {"weightBytesPerGpu": 16094076928},
    "stepBreakdown": {"decode": {"seconds": 0.02, "parts": {"fixed": 0.015, "context": 0.005, "nothing": 0.0}}},
    "preemptions": 0,
}
REPLAY: dict[str, Any] = {
    "source": "trace.jsonl",
    "completedRequests": 400,
    "rejectedRequests": 3,
    "durationSeconds": 86.0,
    "gpus": 2,
    "requestsPerSecond": 4.65,
    "outputTokensPerSecondPerGpu": 385.0,
    "hitRate": 0.839,
    "preemptions": 7,
    **{f"{key}Milliseconds": LATENCY for key in ("ttft", "queue", "tpot", "itl", "e2e")},
    "ranks": [
        {"pool": "colocated", "replica": 0, "rank": 1, "requests": 9, "hitRate": 0.5, "peakKvBlocks": 5, "kvBlocks": 10,
         "evictedBlocks": 0, "preemptions": 0}
    ],
    "replicas": [
        {"pool": "colocated", "replica": 0, "busyFraction": 0.978, "steps": 17, "prefillSteps": 2, "meanBatch": 2.08}
    ],
}  # fmt: skip
EXPLANATION: dict[str, Any] = {
    "scope": "all scored candidates",
    "refused": {"tp-divides-heads": 2},
    "tiers": [
        {
            "tier": "realtime",
            "why": "the best",
            "headroomPermille": 57,
            "chosen": {**ROW, "label": "SGLang TP4 x1"},
            "blocked": {
                "configuration": {**ROW, "label": "SGLang TP1 x1"},
                "limit": "ttft",
                "gainPermille": 1879,
                "missPermille": 270,
                "why": "ttft binds: without it SGLang TP1 x1 would give +188 %; it is 27 % off",
            },
            "runnersUp": [
                {
                    "configuration": {**ROW, "label": "SGLang TP2 x1"},
                    "why": "less of everything",
                    "breakEven": {"holdsAtConcurrency": 64, "flipsAtConcurrency": 128, "reason": "it misses TTFT"},
                },
                {"configuration": {**ROW, "label": "SGLang TP8 x1"}, "why": "dearer", "breakEven": None},
            ],
        },
        {"tier": "instant", "why": "nothing qualifies", "chosen": None, "blocked": None, "runnersUp": []},
    ],
    "disaggregation": {
        "backend": "MoRI",
        "splits": 5,
        "tiers": [{"tier": "realtime", "split": None, "gainPermille": None}],
    },
}
PAGES = {
    "plan": lambda: plan.render(RESULT, name="chat", explanation=EXPLANATION),
    "prediction": lambda: run.prediction(PREDICTION),
    "replay": lambda: run.replay(REPLAY),
    "explain": lambda: explain.render(EXPLANATION),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_keeps_the_rules_and_its_bytes(name: str) -> None:
    text = PAGES[name]()
    assert_page(text)
    assert text == PAGES[name]()
    assert len(text) < 200_000


def test_the_answer_comes_first_with_price_interval_and_doubt() -> None:
    """Price by hand: 1e6 / 2480 / 3600 = 0.112; speed of the interval's ends: 1e6 / 7676 = 130, 1e6 / 5186 = 193."""
    dom = assert_page(plan.render(RESULT))
    first, second = [held for held in dom.text("li") if held.startswith(("realtime ≥", "instant ≥"))]
    for fragment in (
        "SGLang TP4-ADP4 ×1 on 4 GPUs, 64 in flight",
        "2,480",
        "2,076–2,963",
        "130–193",
        "152 ms",
        "0.102–1.23 s",
        "0.112 GPU-hours per M tokens; headroom +6 %",
        "from anchor anchor-a",
        "extrapolated-width",
        "1 note",
        "May miss 150 tok/s per user, TTFT 1 s: inside the interval.",
    ):
        assert fragment in first
    assert "Not feasible: interactivity binds." in second
    assert "253 tokens/s per user is the most" in second
    assert "Nearest: SGLang TP4-ADP4 ×1" in second
    order = [at for at, (name, found, _) in enumerate(dom.elements) if name == "section" or found.get("id") == "main"]
    sections = [dom.elements[at][1]["id"] for at in order]
    assert sections[:3] == ["main", "answer", "trade-off"]
    assert "1 of 2 tiers have a configuration within 8 GPUs." in "".join(dom.text("strong"))


def test_settings_that_a_search_moved_are_part_of_the_name() -> None:
    result = copy.deepcopy(RESULT)
    result["selected"][0]["settings"] = "chunkTokens=8192"
    assert "SGLang TP4-ADP4 ×1 (chunkTokens=8192)" in "".join(assert_page(plan.render(result)).text("li"))


def test_a_limit_outside_the_interval_is_not_called_a_risk() -> None:
    result = copy.deepcopy(RESULT)
    result["effective"]["tiers"][0] |= {"tokensPerSecondPerUser": 130, "ttftMilliseconds": 1228}
    assert "May miss" not in plan.render(result)


def test_figures_of_nothing_have_a_page_too() -> None:
    """A run in which nothing comes out: zeros everywhere."""

    def nothing(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: nothing(item) for key, item in value.items()}
        if isinstance(value, list):
            return [nothing(item) for item in value]
        return type(value)(0) if type(value) in (int, float) else value

    assert_page(plan.render(nothing(RESULT) | {"effective": RESULT["effective"]}))
    layouts = {"layout": "TP1", "source": PREDICTION["source"]}
    assert_page(run.prediction(nothing(PREDICTION) | layouts))
    assert_page(run.replay(nothing(REPLAY)))


def test_figures_that_only_rank_say_so_in_the_first_lines() -> None:
    result = copy.deepcopy(RESULT)
    result["selected"][0]["source"] = {"mode": "Simulate", "flags": ["ranking-only"]}
    dom = Dom(plan.render(result))
    assert any("promise nothing" in held for held in dom.text("strong"))
    assert "promise nothing" in run.prediction({**PREDICTION, "mode": "simulate"})


def test_a_plan_without_any_figure_still_has_a_page() -> None:
    empty = {**RESULT, "selected": [], "front": [], "shortList": {}, "recommendedHarvests": []}
    empty["binding"] = [
        {"tier": tier["name"], "limit": "anchor", "detail": "none"} for tier in RESULT["effective"]["tiers"]
    ]
    assert_page(plan.render(empty))


def test_the_picture_is_an_image_of_its_own() -> None:
    root = ElementTree.fromstring(plan.picture(RESULT))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.attrib["role"] == "img"
    assert "Throughput per GPU against speed per user" in root.attrib["aria-label"]
    assert not any("tabindex" in element.attrib for element in root.iter())


def test_a_shared_budget_shows_who_gets_what_and_what_stays_unserved() -> None:
    allocation = {
        "model": "A",
        "tier": "realtime",
        "gpus": 4,
        "servedTokensPerSecond": 900,
        "demandTokensPerSecond": 1000,
    }
    mix = {"gpuBudget": 8, "gpus": 4, "demandTokensPerSecond": 1500, "servedTokensPerSecond": 900}
    mix["allocations"] = [allocation | {"configuration": CONFIGURATION}, allocation | {"model": "B", "gpus": 0}]
    result = {**RESULT, "mix": mix, "search": {"method": "Seeds", "trials": 20, "refused": 3}}
    result["binding"] = [{"tier": "realtime", "limit": "gpu-budget", "detail": "100 tok/s are not served"}]
    dom = assert_page(plan.render(result))
    card = next(held for held in dom.text("li") if held.startswith("realtime ≥"))
    assert "gpu-budget binds: 100 tok/s are not served" in card
    rows = dom.text("tr")
    assert "A, realtimeSGLang TP4-ADP4 ×149001,000" in rows
    assert "B, realtimenone09001,000" in rows
    assert "Seeds: 20 trials, 3 refused" in "".join(dom.text("p"))


def test_chosen_points_and_limits_are_in_the_chart_with_every_front_row() -> None:
    dom = Dom(plan.front_chart(RESULT))
    names = [found["aria-label"] for found in dom.attributes("g") if found.get("role") == "img"]
    assert len(names) == len(RESULT["front"]) + 1
    assert sum(name.startswith("realtime: ") for name in names) == 1
    assert "realtime ≥ 150" in dom.text("text")
    assert [found["tabindex"] for found in dom.attributes("g") if "tabindex" in found].count("0") == 1


HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)>&amp;'`${x}"


@settings(max_examples=25)
@given(st.one_of(st.just(HOSTILE), st.text(max_size=60)))
def test_nothing_can_be_injected_through_names(text: str) -> None:
    result = copy.deepcopy(RESULT)
    result["effective"]["model"] = text
    for choice in result["selected"]:
        choice["tier"] = choice["reason"] = choice["source"]["anchor"] = text
        choice["source"]["flags"] = [text]
    result["effective"]["tiers"][0]["name"] = text
    result["refusals"][0]["detail"] = result["binding"][0]["detail"] = text
    explanation = copy.deepcopy(EXPLANATION)
    explanation["tiers"][0]["tier"] = explanation["tiers"][0]["why"] = text
    plain = Dom(plan.render(RESULT, name="x", explanation=EXPLANATION))
    dom = assert_page(plan.render(result, name=text, explanation=explanation))
    assert len(dom.attributes("script")) == 1
    assert "img" not in {name for name, _, _ in dom.elements}
    # The same elements as for harmless names, but for the chips of flags, whose weight the text decides.
    kinds = {"script", "style", "table", "svg", "section", "h2", "title"}
    assert [n for n, _, _ in dom.elements if n in kinds] == [n for n, _, _ in plain.elements if n in kinds]


@given(st.text(max_size=40), st.text(max_size=40))
def test_text_and_attributes_come_back_as_they_were(held: str, named: str) -> None:
    # The parser, as a browser, turns carriage returns and NUL into something else: neither is markup.
    held, named = (text.replace("\r", "").replace("\0", "") for text in (held, named))
    dom = Dom(tag("p", held, aria_label=named))
    assert dom.text("p") == [held]
    assert dom.attributes("p")[0]["aria-label"] == named


@given(
    st.lists(st.floats(1e-3, 1e7), min_size=1, max_size=20),
    st.booleans(),
)
def test_every_value_lies_on_its_axis_and_ticks_are_few(values: list[float], is_log: bool) -> None:
    axis = (scale.log if is_log else scale.even)(values, 50, 500)
    assert all(axis.holds(value) and 50 <= axis(value) <= 500 for value in values)
    assert sorted(axis(value) for value in values) == [axis(value) for value in sorted(values)]
    ticks = axis.ticks()
    assert len(ticks) <= 12
    assert all(axis.holds(tick) for tick in ticks)


def test_a_limit_is_named_where_no_point_is() -> None:
    """Points below, then above: its name is at the other end of its line, which starts there or ends there."""
    for low, anchor in ((True, "end"), (False, "start")):
        points = [charts.Point(f"p{n}", 98 + n / 2, (0 if low else 900) + 20 * n) for n in range(5)]
        limits, ends = [charts.Limit("realtime", 100)], [charts.Point("a", 50, 0), charts.Point("b", 200, 1000)]
        drawn = charts.scatter(
            id_="x", title="t", x_name="x", y_name="y", points=[*points, *ends], limits=limits, number=numbers.count
        )
        (name,) = [found for tag, found, words in Dom(drawn).elements if tag == "text" and words == ["realtime"]]
        assert name["text-anchor"] == anchor


def test_labels_of_chosen_points_do_not_cover_one_another() -> None:
    """Four points close together, as tiers that choose neighbouring configurations are."""
    points = [charts.Point(f"p{n}", 100 + n, 1000 + 20 * n, label=f"tier-{n}") for n in range(4)]
    dom = Dom(charts.scatter(id_="x", title="t", x_name="x", y_name="y", points=points, number=numbers.count))
    places = {(found["x"], found["y"]) for found in dom.attributes("text") if found.get("class") == "label"}
    assert len(places) == 4


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0, "0 ms"), (6.31, "6.31 ms"), (152, "152 ms"), (999.6, "1,000 ms"), (1852, "1.85 s"), (None, "–")],
)
def test_latencies_are_told_in_one_unit(value: float | None, told: str) -> None:
    assert numbers.latency_ms(value) == told


def test_a_flag_that_nobody_explained_counts_as_a_doubt() -> None:
    assert flags.is_doubt("brand-new-flag")
    assert not flags.is_doubt("not-harvested")
    assert "brand-new-flag" in str(flags.explained({"bulk": ["brand-new-flag"]}))
