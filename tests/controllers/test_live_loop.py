"""The loop: exported at its interval, told at most every 30 s, gone with the owner; pools judged together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client.registry import CollectorRegistry

from inferasim_operator.live import loop as loops
from inferasim_operator.live.compare import Comparison, Promise, compare
from inferasim_operator.live.direct import Source
from inferasim_operator.live.export import Key, LiveCollector
from inferasim_operator.live.judge import judge
from inferasim_operator.live.loop import LiveLoop, interval_s
from inferasim_operator.live.request import Pool, Prometheus, Reading, Report, Request, Subject
from inferasim_operator.live.scrape import Histogram
from inferasim_operator.live.window import Window
from simcore.errors import InputError

KEY = Key("ns", "chat", "interactive", "m", "VLLM", "MI355X", "TP2")
POOL = Pool("VLLM", "ns", (("a", "b"),), (), "http", "/metrics", gpus_per_replica_count=2)
PROMISE = Promise(
    ttft_s=0.4,
    tpot_s=0.025,
    tokens_per_s_per_gpu=500,
    gpus_per_replica_count=2,
    concurrency_per_replica=25,
    prompt_tokens=1000,
    output_tokens=101,
)
REQUEST = Request("ns", "chat", (Subject(KEY, PROMISE, "", POOL),), 300.0, (("ttft", 0.1),))


def steady(ttft_s: float = 0.5, replicas: int = 1) -> Window:
    """Ten requests a second on each replica for 10 s, each of 2.5 s: 25 in flight."""
    count = 100.0 * replicas
    means = {"ttft": ttft_s, "tpot": 0.02, "e2e": 2.5, "promptLength": 1000.0, "outputLength": 101.0}
    histograms = {
        name: Histogram((mean / 2, mean * 2, float("inf")), (0.0, count, count), count * mean)
        for name, mean in means.items()
    }
    counters = {"generatedTokens": count * 101, "prefixQueried": count * 1000, "prefixHit": 0.0}
    return Window(10.0, replicas, histograms, counters, {"running": 25.0 * replicas, "waiting": 0.0, "kvUse": 0.4})


class FakeSource(Source):
    reading = Reading(steady())
    closed = 0
    error: Exception | None = None

    def read(self, pools: Sequence[Pool], window_s: float, now_s: float) -> dict[Pool, Reading]:
        if self.error is not None:
            raise self.error
        return dict.fromkeys(pools, self.reading)

    def close(self) -> None:
        self.closed += 1


class Bench:
    """A loop without threads, with its own clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.registry, self.collector, self.source = CollectorRegistry(), LiveCollector(), FakeSource()
        self.registry.register(self.collector)
        self.loop = LiveLoop(
            self.collector,
            words=lambda report: [int(f.figures["ttft"].error_ratio * 10) if f.figures else f.reasons
                                  for f in report.comparisons.values()],
            monotonic_s=lambda: self.now_s,
            workers=0,
        )  # fmt: skip
        self.woken: list[object] = []
        self.loop.on_change = self.woken.append

    def want(self, request: Request = REQUEST) -> Report | None:
        return self.loop.want("chat", request, lambda: self.source)

    def step(self, seconds: float) -> None:
        self.now_s += seconds
        self.loop.step()

    def error(self) -> float | None:
        labels = dict(zip(Key.__dataclass_fields__, KEY.values(), strict=True))
        return self.registry.get_sample_value("inferasim_prediction_ttft_error_ratio", labels)


def test_the_interval_is_a_tenth_of_the_window_within_bounds() -> None:
    assert [interval_s(window_s) for window_s in (30, 100, 300, 86_400)] == [5, 10, 30, 30]


def test_what_is_wanted_is_exported_and_told_once() -> None:
    """The series follow every read; the status follows 30 s apart, and only when its words differ."""
    bench = Bench()
    assert bench.want() is None
    bench.step(0)
    assert bench.error() == pytest.approx(0.25)
    assert bench.woken == ["chat"]
    told = bench.want()
    assert told is not None
    bench.source.reading = Reading(steady(ttft_s=0.501))
    bench.step(30)
    assert bench.error() == pytest.approx(0.2525)
    assert bench.woken == ["chat"], "the same words"
    bench.source.reading = Reading(steady(ttft_s=0.8))
    bench.step(10)
    assert bench.woken == ["chat"], "not due"
    bench.step(20)
    assert bench.woken == ["chat", "chat"]
    bench.source.reading = Reading(steady(ttft_s=0.4))
    quick = replace(REQUEST, window_s=30.0)
    bench.want(quick)
    bench.step(0)
    bench.source.reading = Reading(steady(ttft_s=0.8))
    for _ in range(5):
        bench.step(5)
        assert bench.error() == pytest.approx(1.0)
    assert len(bench.woken) == 3, "another request speaks at once, then not for 30 s"
    bench.step(5)
    assert len(bench.woken) == 4


def test_series_end_with_their_owner_and_with_their_promise() -> None:
    bench = Bench()
    bench.want()
    bench.step(0)
    assert bench.error() is not None
    bench.want(replace(REQUEST, subjects=(replace(REQUEST.subjects[0], promise=replace(PROMISE, ttft_s=0.5)),)))
    assert bench.error() is None, "nothing is said by the old promise"
    bench.step(0)
    assert bench.error() == pytest.approx(0.0)
    assert bench.source.closed == 0, "what was scraped is kept"
    bench.want(replace(REQUEST, prometheus=Prometheus("http://p.test")))
    assert bench.source.closed == 1
    bench.loop.forget("chat")
    bench.step(60)
    assert bench.error() is None
    assert bench.loop.known("chat") is None
    assert "mix=" not in "".join(str(sample) for family in bench.registry.collect() for sample in family.samples)


def test_a_broken_read_is_a_reason_not_yesterday_s_figure() -> None:
    bench = Bench()
    bench.want()
    bench.step(0)
    bench.source.error = InputError("url", 1, "be another")
    bench.step(30)
    assert bench.error() is None
    bench.source.error = RuntimeError("bug")
    bench.step(30)
    report = bench.want()
    assert report is not None
    assert report.comparisons[KEY].reasons == ("internal error, see the operator's log",)


def test_the_thread_reads_by_itself() -> None:
    collector, source = LiveCollector(), FakeSource()
    import threading

    done = threading.Event()
    loop = LiveLoop(collector, words=repr)
    loop.on_change = lambda owner: done.set()
    loop.want("chat", REQUEST, lambda: source)
    assert done.wait(20)
    loop.forget("chat")
    assert loops.WORKERS > 1


def test_two_pools_are_judged_by_the_router() -> None:
    """100 requests over 10 s: 1010 tok/s on 2 decode GPUs and 4 prefill ones; latency is the router's alone."""
    prefill = replace(POOL, labels=(("a", "prefill"),), gpus_per_replica_count=4)
    router = replace(POOL, labels=(("a", "epp"),), source="EPP", gpus_per_replica_count=0)
    decode_window = replace(steady(ttft_s=9.0), counters={"generatedTokens": 10_100.0})
    decode_window.gauges.update(running=20.0)
    prefill_window = replace(steady(ttft_s=9.0), gauges={"running": 5.0})
    router_window = replace(steady(ttft_s=0.5), counters={}, gauges={})
    subject = Subject(KEY, PROMISE, "", POOL, prefill, router)
    readings = {POOL: Reading(decode_window), prefill: Reading(prefill_window), router: Reading(router_window)}
    found = judge(subject, readings)
    assert found.reasons == ()
    assert found.figures["ttft"].observed == pytest.approx(0.5)
    assert found.figures["throughput"].observed == pytest.approx(1010 / 6)
    silent = judge(subject, {**readings, router: Reading(None, "no pod of epp is ready")})
    assert silent.figures == {}
    assert silent.reasons == ("no pod of epp is ready",)


def test_the_error_is_of_the_replicas_that_are_observed() -> None:
    """Case D04: three replicas where two were planned carry the same load each, so the same is promised of each."""
    three = judge(REQUEST.subjects[0], {POOL: Reading(steady(replicas=3))})
    assert three.replicas_count == 3
    assert three.figures["throughput"].error_ratio == pytest.approx(0.01)


def test_atom_without_a_router_says_its_throughput_only() -> None:
    counters = {"finishedRequests": 100.0, "promptTokens": 100_000.0, "generatedTokens": 10_100.0}
    found = compare(PROMISE, Window(10.0, 1, {}, counters, {"running": 25.0}))
    assert found.reasons == ()
    assert set(found.figures) == {"throughput"}
    assert found.missing == ("ttft", "tpot")
    other = compare(PROMISE, Window(10.0, 1, {}, {**counters, "promptTokens": 400_000.0}, {"running": 25.0}))
    assert other.reasons == ("mean prompt length is 4000, predicted for 1000",)
    unknown = compare(PROMISE, Window(10.0, 1, {}, {**counters}, {}))
    assert unknown.reasons == ("the targets do not say the requests in flight per replica",)


def test_an_interval_is_two_series_and_the_last_bucket_has_one() -> None:
    """No percentile is made up between two bounds."""
    registry, collector = CollectorRegistry(), LiveCollector()
    registry.register(collector)
    found = replace(
        compare(PROMISE, steady()), quantiles={("ttft", 0.5): (0.25, 1.0), ("ttft", 0.99): (1.0, float("inf"))}
    )
    collector.set_mix("ns", "chat", {KEY: found})
    labels = dict(zip(Key.__dataclass_fields__, KEY.values(), strict=True))

    def value(end: str, quantile: str) -> float | None:
        name = f"inferasim_observed_ttft_quantile_{end}_seconds"
        return registry.get_sample_value(name, {**labels, "quantile": quantile})

    assert (value("low", "0.5"), value("high", "0.5")) == (0.25, 1.0)
    assert (value("low", "0.99"), value("high", "0.99")) == (1.0, None)


@pytest.mark.parametrize(("limit", "within"), [(0.2, 0.0), (0.3, 1.0), (None, None)])
def test_tolerance_is_a_series_only_where_there_is_one(limit: float | None, within: float | None) -> None:
    registry, collector = CollectorRegistry(), LiveCollector()
    registry.register(collector)
    collector.set_mix("ns", "chat", {KEY: compare(PROMISE, steady())}, {"ttft": limit} if limit else {})
    labels = dict(zip(Key.__dataclass_fields__, KEY.values(), strict=True))
    assert registry.get_sample_value("inferasim_prediction_within_tolerance", labels) == within
    collector.set_mix("ns", "chat", {KEY: Comparison({}, ("no",))}, {"ttft": limit} if limit else {})
    assert registry.get_sample_value("inferasim_prediction_within_tolerance", labels) is None
