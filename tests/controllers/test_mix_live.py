"""Live figures: names that move (E11), comparability first (B06, B13), ITL never taken for TPOT (E03, E04)."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.registry import CollectorRegistry

from inferasim_operator.live.compare import Promise, compare, expected_hit_frac
from inferasim_operator.live.export import Key, LiveCollector
from inferasim_operator.live.scrape import Histogram, parse_scrape
from inferasim_operator.live.window import Window, combined, window
from simcore.errors import FormatError, InputError

LATENCIES = {
    "VLLM": (
        "vllm:time_to_first_token_seconds",
        "vllm:request_time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens",
    ),
    "EPP": (
        "llm_d_epp_request_ttft_seconds",
        "llm_d_epp_request_streaming_tpot_seconds",
        "llm_d_epp_request_duration_seconds",
        "llm_d_epp_request_input_tokens",
        "llm_d_epp_request_output_tokens",
    ),
}


def histogram(name: str, count: float, mean: float, bound: float | None = None) -> str:
    edge = mean * 2 if bound is None else bound
    lines = [f'{name}_bucket{{le="{edge}"}} {count}', f'{name}_bucket{{le="+Inf"}} {count}']
    return "\n".join([f"# TYPE {name} histogram", *lines, f"{name}_sum {count * mean}", f"{name}_count {count}"]) + "\n"


def page(
    source: str, count: float, *, ttft: float = 0.5, tpot: float = 0.02, isl: float = 1000, osl: float = 101
) -> str:
    """A page of a steady server: `count` requests so far, each 2.5 s long."""
    means = (ttft, tpot, 2.5, isl, osl)
    return "".join(histogram(name, count, mean) for name, mean in zip(LATENCIES[source], means, strict=True))


def vllm(count: float, *, tokens: float, running: float = 25, kv: float = 0.4, old: bool = False) -> str:
    kv_name = "vllm:gpu_cache_usage_perc" if old else "vllm:kv_cache_usage_perc"
    itl = "vllm:time_per_output_token_seconds" if old else "vllm:inter_token_latency_seconds"
    gauges = f"vllm:num_requests_running {running}\nvllm:num_requests_waiting 0\n{kv_name} {kv}\n"
    counters = f"vllm:generation_tokens_total {tokens}\nvllm:prefix_cache_queries_total {count * 1000}\n"
    return (
        page("VLLM", count) + histogram(itl, count * 100, 0.02) + gauges + counters + "vllm:prefix_cache_hits_total 0\n"
    )


def seen(running: float = 25) -> Window:
    """Ten seconds, 100 requests of 101 tokens on one target: 25 in flight by Little's law."""
    before = parse_scrape(vllm(100, tokens=10_100), "VLLM", 0.0)
    return window(before, parse_scrape(vllm(200, tokens=20_200, running=running), "VLLM", 10.0))


PROMISE = Promise(
    ttft_s=0.4,
    tpot_s=0.025,
    tokens_per_s_per_gpu=1000,
    gpus_per_replica_count=1,
    concurrency_per_replica=25,
    prompt_tokens=1000,
    output_tokens=101,
)


def test_old_and_new_names_give_the_same_report() -> None:
    """Case E11: KV use and ITL under either name; TPOT is never read from the old ITL name."""
    new = parse_scrape(vllm(100, tokens=1), "VLLM", 0.0)
    old = parse_scrape(vllm(100, tokens=1, old=True), "VLLM", 0.0)
    assert new == old
    assert new.numbers["kvUse"] == 0.4
    assert new.histograms["itl"].samples_count == 10_000
    only_itl = parse_scrape(histogram("vllm:time_per_output_token_seconds", 10, 0.02), "VLLM", 0.0)
    assert set(only_itl.histograms) == {"itl"}


def test_a_missing_metric_is_absent_not_zero() -> None:
    empty = parse_scrape("up 1\n", "VLLM", 0.0)
    assert (empty.histograms, empty.numbers) == ({}, {})
    result = compare(PROMISE, window(empty, replace(empty, at_s=10.0)))
    assert result.figures == {}
    assert result.reasons


def test_shares_are_means_and_counts_are_sums_over_the_targets() -> None:
    """Case E11: two pods at 40 % are at 40 %."""
    both = combined([seen(), seen()])
    assert both.gauges["kvUse"] == 0.4
    assert both.gauges["running"] == 50
    assert both.targets_count == 2
    assert both.generated_tokens_per_s() == 2 * 1010


def test_the_figures_by_hand() -> None:
    """100 requests, TTFT 0.5 s against 0.4: +25 %; TPOT 0.02 against 0.025: -20 %; 1010 tok/s on one GPU: +1 %."""
    result = compare(PROMISE, seen())
    assert result.reasons == ()
    assert result.figures["ttft"].error_ratio == pytest.approx(0.25)
    assert result.figures["tpot"].error_ratio == pytest.approx(-0.2)
    assert result.figures["throughput"].error_ratio == pytest.approx(0.01)


def test_throughput_is_of_the_gpus_that_were_seen() -> None:
    """Case D04: the error is of the observed replicas, and groups count once however many pods they have (B13)."""
    two = compare(replace(PROMISE, gpus_per_replica_count=2), combined([seen(), seen()]))
    assert two.figures["throughput"].observed == pytest.approx(2020 / 4)


def test_no_figure_below_a_minimum_of_requests() -> None:
    """Case B13: 200 tokens over 0.02 requests were once published as 10,000 tokens per request."""
    before = parse_scrape(vllm(100, tokens=10_100), "VLLM", 0.0)
    after = parse_scrape(vllm(100.2, tokens=12_100), "VLLM", 10.0)
    result = compare(PROMISE, window(before, after))
    assert result.figures == {}
    assert "at least 30" in result.reasons[0]


def test_a_prefix_that_is_not_there_is_a_reason_and_no_error() -> None:
    """Case B06: 1024 of 4000 tokens in blocks of 16 are 25.6 %; the traffic hits nothing."""
    assert expected_hit_frac(prompt_tokens=4000, shared_prefix_tokens=1024, block_tokens=16) == pytest.approx(0.256)
    result = compare(replace(PROMISE, shared_prefix_tokens=512), seen())
    assert result.figures == {}
    assert any("prefix cache" in reason for reason in result.reasons)


@pytest.mark.parametrize(
    ("promise", "text"),
    [
        (replace(PROMISE, prompt_tokens=4000), "prompt length is 1000"),
        (replace(PROMISE, output_tokens=500), "output length is 101"),
        (replace(PROMISE, concurrency_per_replica=64), "in flight per replica is 25"),
        (replace(PROMISE, acceptance_length_tokens=None), ""),
    ],
)
def test_another_load_is_named(promise: Promise, text: str) -> None:
    reasons = compare(promise, seen()).reasons
    assert any(text in reason for reason in reasons) if text else reasons == ()


def test_a_load_that_is_not_steady_is_named() -> None:
    """10 requests per second of 2.5 s are 25 in flight; 60 are a queue that grows."""
    result = compare(replace(PROMISE, concurrency_per_replica=60), seen(running=60))
    assert any("not steady" in reason for reason in result.reasons)


def test_speculation_must_be_accepted_as_promised() -> None:
    text = "vllm:spec_decode_num_drafts_total {}\nvllm:spec_decode_num_accepted_tokens_total {}\n"
    before = parse_scrape(vllm(100, tokens=10_100) + text.format(0, 0), "VLLM", 0.0)
    after = parse_scrape(vllm(200, tokens=20_200) + text.format(1000, 1660), "VLLM", 10.0)
    found = window(before, after)
    assert found.acceptance_length_tokens() == pytest.approx(2.66)
    assert compare(replace(PROMISE, acceptance_length_tokens=2.66), found).reasons == ()
    assert any("acceptance" in r for r in compare(replace(PROMISE, acceptance_length_tokens=3.5), found).reasons)
    assert any("without" in r for r in compare(PROMISE, found).reasons)


@pytest.mark.parametrize("new", [True, False])
def test_atom_takes_its_latency_from_the_router(new: bool) -> None:
    """ATOM has no latency histogram; both sets of its names are read."""
    running, waiting, kv = (
        ("requests_running", "requests_waiting", "kv_cache_usage_ratio")
        if new
        else ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    )
    text = f"atom:{running} 25\natom:{waiting} 0\natom:{kv} 0.4\natom:generation_tokens_total {{}}\n"
    engine = window(parse_scrape(text.format(0), "ATOM", 0.0), parse_scrape(text.format(10_100), "ATOM", 10.0))
    router = window(parse_scrape(page("EPP", 100), "EPP", 0.0), parse_scrape(page("EPP", 200), "EPP", 10.0))
    assert compare(PROMISE, engine).figures == {}
    result = compare(PROMISE, engine, router)
    assert result.reasons == ()
    assert result.figures["ttft"].error_ratio == pytest.approx(0.25)
    assert result.figures["throughput"].observed == pytest.approx(1010)


def test_a_restart_counts_from_zero() -> None:
    before = parse_scrape(vllm(500, tokens=50_000), "VLLM", 0.0)
    after = parse_scrape(vllm(100, tokens=10_100), "VLLM", 10.0)
    found = window(before, after)
    assert found.counters["generatedTokens"] == 10_100
    assert found.histograms["ttft"].samples_count == 100
    with pytest.raises(InputError):
        window(after, before)


def test_a_histogram_gives_an_interval_not_a_point() -> None:
    """Ten values up to 0.1, ten more up to 1, one beyond: the median is above 0.1, the last has no upper end."""
    found = Histogram((0.1, 1.0, math.inf), (10, 20, 21), 9.0)
    assert found.quantile_interval(0.25) == (0.0, 0.1)
    assert found.quantile_interval(0.5) == (0.1, 1.0)
    assert found.quantile_interval(1.0) == (1.0, math.inf)
    assert Histogram((math.inf,), (0,), 0.0).quantile_interval(0.5) is None


@given(
    values=st.lists(st.floats(0.001, 99.0), min_size=1, max_size=50),
    share=st.floats(0.01, 1.0),
)
def test_the_interval_holds_the_quantile(values: list[float], share: float) -> None:
    bounds = (0.01, 0.1, 1.0, 10.0, 100.0, math.inf)
    found = Histogram(bounds, tuple(float(sum(v <= b for v in values)) for b in bounds), sum(values))
    interval = found.quantile_interval(share)
    assert interval is not None
    # The quantile by its definition: the smallest value with at least this share of the values at or below it.
    exact = sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]
    assert interval[0] <= exact <= interval[1]


@given(text=st.text(max_size=300))
def test_a_hostile_page_is_refused_or_read(text: str) -> None:
    with contextlib.suppress(FormatError):
        parse_scrape(text, "VLLM", 0.0)


def test_series_vanish_with_their_mix_and_say_nothing_without_figures() -> None:
    registry, collector = CollectorRegistry(), LiveCollector()
    registry.register(collector)
    one = Key("ns", "chat", "interactive", "m", "VLLM", "MI355X", "TP1")
    two = replace(one, layout="TP2")
    collector.set_mix("ns", "chat", {one: compare(PROMISE, seen()), two: compare(PROMISE, seen(running=60))})

    def value(name: str, key: Key) -> float | None:
        return registry.get_sample_value(name, dict(zip(Key.__dataclass_fields__, key.values(), strict=True)))

    assert value("inferasim_prediction_ttft_error_ratio", one) == pytest.approx(0.25)
    assert value("inferasim_observed_ttft_seconds", one) == pytest.approx(0.5)
    assert value("inferasim_live_comparable", one) == 1
    assert value("inferasim_live_comparable", two) == 0
    assert value("inferasim_prediction_ttft_error_ratio", two) is None
    collector.set_mix("ns", "chat", {})
    assert value("inferasim_live_comparable", one) is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_value_that_is_no_number_makes_no_figure(value: str) -> None:
    name = "vllm:time_to_first_token_seconds"
    rows = [f'{name}_bucket{{le="+Inf"}} 10', f"{name}_sum {value}", f"vllm:kv_cache_usage_perc {value}"]
    found = parse_scrape("\n".join(rows) + "\n", "VLLM", 0.0)
    assert (found.histograms, found.numbers) == ({}, {})


def test_a_histogram_without_its_last_bucket_is_none() -> None:
    found = parse_scrape('vllm:time_to_first_token_seconds_bucket{le="1"} 10\n', "VLLM", 0.0)
    assert found.histograms == {}


def test_a_series_that_is_there_twice_is_no_page() -> None:
    """Counting it twice would double the rate."""
    with pytest.raises(FormatError):
        parse_scrape('vllm:num_requests_running{a="b"} 1\nvllm:num_requests_running{a="b"} 1\n', "VLLM", 0.0)


def test_another_model_of_the_same_server_does_not_count() -> None:
    """Names with quotes and slashes, one of them ours; a series that says no model is everybody's."""
    rows = [
        f'vllm:generation_tokens_total{{engine="{engine}",model_name="{model}"}} {tokens}'
        for engine, model, tokens in ((0, 'a/\\"b', 5), (1, 'a/\\"b', 7), (0, "other", 1000))
    ]
    text = "\n".join([*rows, "vllm:kv_cache_usage_perc 0.5"]) + "\n"
    assert parse_scrape(text, "VLLM", 0.0, model='a/"b').numbers == {"generatedTokens": 12, "kvUse": 0.5}
    assert parse_scrape(text, "VLLM", 0.0).numbers["generatedTokens"] == 1012
