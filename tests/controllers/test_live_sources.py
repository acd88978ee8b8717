"""Where live figures come from: pods counted as replicas, hostile answers, PromQL, many scrapes as one window."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferasim_operator.errors import ForbiddenError
from inferasim_operator.live import prometheus
from inferasim_operator.live.direct import MAX_SCRAPES, DirectSource, keep
from inferasim_operator.live.page import PageError, fetch
from inferasim_operator.live.pods import MAX_PODS, targets
from inferasim_operator.live.prometheus import PrometheusApi, PrometheusSource, quoted, scrapes, selector
from inferasim_operator.live.request import Pool, Prometheus
from inferasim_operator.live.scrape import Scrape, parse_scrape, series_names
from inferasim_operator.live.window import over, window
from simcore.errors import InputError

POOL = Pool(
    source="VLLM",
    namespace="ns",
    labels=(("inferasim.dev/mix", "chat"), ("leaderworkerset.sigs.k8s.io/worker-index", "0")),
    series_labels=(("inferasim_dev_mix", "chat"),),
    port_name="http",
    path="/metrics",
    gpus_per_replica_count=16,
    container="modelserver",
    image="registry.test/team/vllm:v1",
    arguments=("--a=1",),
)


def pod(name: str, **changes: Any) -> dict[str, Any]:
    container = {"name": "modelserver", "image": "mirror.test/vllm:v1", "args": ["--a=1"]}
    container |= {"ports": [{"name": "http", "containerPort": 8000}]} | changes.pop("container", {})
    status = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]} | changes.pop("status", {})
    metadata = {"name": name, "uid": f"uid-{name}"} | changes
    return {"metadata": metadata, "spec": {"containers": [container]}, "status": status}


def text(tokens: float, running: float = 4) -> str:
    return f"vllm:generation_tokens_total {tokens}\nvllm:num_requests_running {running}\nvllm:kv_cache_usage_perc 0.5\n"


def test_a_group_is_one_replica() -> None:
    """Case B13: two groups of two pods are two replicas, for only leaders are asked for; a mirror is the same."""
    assert "leaderworkerset.sigs.k8s.io/worker-index=0" in POOL.selector
    found, problem = targets(POOL, [pod("g-0"), pod("g-1", status={"podIP": "fd00::1"})])
    assert problem == ""
    assert [target.url for target in found] == ["http://10.0.0.1:8000/metrics", "http://[fd00::1]:8000/metrics"]


@pytest.mark.parametrize(
    ("pods", "problem"),
    [
        ([], "no pod"),
        ([pod("a", deletionTimestamp="now")], "no pod"),
        ([pod("a", status={"conditions": []})], "no pod"),
        ([pod("a"), pod("b", container={"args": ["--a=2"]})], "1 of 2 pods of chat run another image"),
        ([pod("a", container={"image": "mirror.test/vllm:v2"})], "1 of 1"),
        ([pod("a", container={"ports": []})], "no port named http"),
        ([pod(str(number)) for number in range(MAX_PODS + 1)], "at most 256"),
    ],
)
def test_pods_that_are_not_the_predicted_ones_are_named(pods: list[dict[str, Any]], problem: str) -> None:
    found, said = targets(POOL, pods)
    assert (found, problem in said) == ((), True)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_pods_are_read_over_a_window() -> None:
    """Ten scrapes of two pods, 100 tokens a second each; a failing pod, a new pod and a vanished one are reasons."""
    clock, pods = Clock(), [pod("a"), pod("b", status={"podIP": "10.0.0.2"})]
    broken: set[str] = set()

    def page(url: str) -> str:
        if any(address in url for address in broken):
            raise PageError("ConnectError")
        return text(100 * clock.now_s)

    source = DirectSource(lambda _: list(pods), page, monotonic_s=clock)
    for _ in range(10):
        reading = source.read([POOL], 30.0, clock.now_s)[POOL]
        assert (reading.window is None) == (clock.now_s < 27.0), clock.now_s
        clock.now_s += 3.0
    assert reading.window is not None
    assert reading.window.targets_count == 2
    assert reading.window.generated_tokens_per_s() == pytest.approx(200)
    assert reading.window.gauges == {"running": 8, "kvUse": 0.5}
    broken.add("10.0.0.2")
    assert "1 of 2 pods cannot be scraped (b: ConnectError)" in source.read([POOL], 30.0, clock.now_s)[POOL].problem
    broken.clear()
    clock.now_s += 3.0
    assert source.read([POOL], 30.0, clock.now_s)[POOL].window is not None
    pods.append(pod("c"))
    clock.now_s += 3.0
    assert "whole window" in source.read([POOL], 30.0, clock.now_s)[POOL].problem
    del pods[1:]
    clock.now_s += 3.0
    after = source.read([POOL], 30.0, clock.now_s)[POOL].window
    assert after is not None
    assert after.targets_count == 1
    source.close()


@given(
    gaps=st.lists(st.floats(0.5, 50.0), min_size=1, max_size=400),
    window_s=st.floats(30.0, 3000.0),
)
def test_what_is_kept_is_bounded_and_spans_the_window(gaps: list[float], window_s: float) -> None:
    """A day of scrapes every five seconds must not fill the memory, and must still reach back a whole window."""
    history: deque[Scrape] = deque()
    at_s = 0.0
    for gap_s in gaps:
        at_s += gap_s
        keep(history, Scrape(at_s), window_s)
    assert len(history) <= MAX_SCRAPES + 3
    assert history[-1].at_s == at_s, "the newest is always there"
    assert list(history) == sorted(history, key=lambda scrape: scrape.at_s)
    if at_s - gaps[0] >= window_s:
        assert history[0].at_s <= at_s - window_s


def test_pods_that_may_not_be_listed_are_a_reason() -> None:
    def refuse(_: Pool) -> list[Mapping[str, Any]]:
        raise ForbiddenError("no", status=403)

    source = DirectSource(refuse, lambda _: "")
    assert source.read([POOL], 30.0, 0.0)[POOL].problem == "pods cannot be listed: Forbidden"
    garbage = DirectSource(lambda _: [pod("a")], lambda _: "<html>secret")
    problem = garbage.read([POOL], 30.0, 0.0)[POOL].problem
    assert "not a page" in problem
    assert "secret" not in problem
    source.close()
    garbage.close()


def client(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(answer))


def test_a_page_is_bounded_and_not_followed_elsewhere() -> None:
    asked = []

    def elsewhere(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(302, headers={"Location": "http://metadata.test/"})

    with pytest.raises(PageError, match="HTTP 302"):
        fetch(client(elsewhere), "http://pod.test/metrics", limit_bytes=10)
    assert asked == ["http://pod.test/metrics"]
    with pytest.raises(PageError, match="more than 10 bytes"):
        fetch(client(lambda _: httpx.Response(200, content=b"x" * 11)), "http://pod.test/", limit_bytes=10)
    assert (
        fetch(client(lambda _: httpx.Response(200, content=b"x" * 10)), "http://pod.test/", limit_bytes=10) == b"x" * 10
    )


@given(
    steps=st.lists(st.tuples(st.floats(1, 30), st.integers(0, 1000)), min_size=1, max_size=8),
)
def test_many_scrapes_are_one_window(steps: list[tuple[float, int]]) -> None:
    """Without a restart the increments of all steps add up to the difference of the ends."""
    at_s, tokens = 0.0, 0
    history = [parse_scrape(text(0), "VLLM", 0.0)]
    for duration_s, more in steps:
        at_s, tokens = at_s + duration_s, tokens + more
        history.append(parse_scrape(text(tokens), "VLLM", at_s))
    whole = over(history)
    assert whole.counters == window(history[0], history[-1]).counters
    assert whole.duration_s == pytest.approx(at_s)
    assert not whole.is_restarted


def test_a_restart_within_the_window_is_seen() -> None:
    rows = [(0, 50, 2), (5, 10, 4), (9, 60, 6)]
    history = [parse_scrape(text(tokens, running), "VLLM", at_s) for at_s, tokens, running in rows]
    found = over(history)
    assert found.is_restarted
    assert found.counters["generatedTokens"] == 10 + 50
    assert found.gauges["running"] == 4


def matrix(name: str, values: list[tuple[float, str]], **labels: str) -> dict[str, Any]:
    return {"metric": {"__name__": name, **labels}, "values": [list(value) for value in values]}


def test_an_answer_of_prometheus_is_scrapes_by_pod() -> None:
    """Sample times come from `timestamp()`: two evaluations of one sample are one scrape."""
    times = [(100.0, "98"), (105.0, "98"), (110.0, "108")]
    values = [
        matrix("vllm:generation_tokens_total", [(100.0, "5"), (105.0, "5"), (110.0, "25")], pod="a", engine="0"),
        matrix("vllm:generation_tokens_total", [(100.0, "1"), (105.0, "1"), (110.0, "2")], pod="a", engine="1"),
        matrix("vllm:generation_tokens_total", [(100.0, "9")], pod="gone"),
    ]
    clocks = [{"metric": {"pod": "a"}, "values": times}, {"metric": {"pod": "gone"}, "values": [(100.0, "60")]}]
    found = scrapes(values, clocks, "VLLM", since_s=110.0)
    assert found == {
        "a": [
            Scrape(98.0, {}, {"generatedTokens": 6.0}),
            Scrape(108.0, {}, {"generatedTokens": 27.0}),
        ]
    }
    answers: list[list[Any]] = [
        [{"metric": {}}],
        [{"metric": {"__name__": "x"}, "values": [["a", "b"]]}],
        ["x"],
        [None],
    ]
    for broken in answers:
        with pytest.raises(PageError):
            scrapes(broken, [], "VLLM", since_s=0.0)


def test_the_query_names_all_series_and_escapes() -> None:
    query = selector(POOL, series_names("VLLM"))
    for name in (
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:gpu_cache_usage_perc",
        "vllm:generation_tokens_total",
    ):
        assert name in query
    assert query.endswith(',namespace="ns",inferasim_dev_mix="chat"}')
    assert quoted('a"b\\c\n') == '"a\\"b\\\\c\\n"'


def test_prometheus_gives_the_window_at_once() -> None:
    """Twenty steps of one replica at 100 tokens a second; nothing recent, or a failed query, is a reason."""

    def query(promql: str, start_s: float, end_s: float, step_s: float) -> list[Mapping[str, Any]]:
        times = [start_s + step_s * number for number in range(int((end_s - start_s) / step_s) + 1)]
        if promql.startswith("timestamp("):
            return [{"metric": {"pod": "a"}, "values": [(at_s, str(at_s - 1)) for at_s in times]}]
        return [
            matrix("vllm:generation_tokens_total", [(at_s, str(100 * at_s)) for at_s in times], pod="a"),
            matrix("vllm:num_requests_running", [(at_s, "4") for at_s in times], pod="a"),
        ]

    source = PrometheusSource(Prometheus("http://p.test"), None, query)
    found = source.read([POOL], 300.0, 5000.0)[POOL].window
    assert found is not None
    assert found.generated_tokens_per_s() == pytest.approx(100)
    assert found.duration_s >= 300.0
    empty = PrometheusSource(Prometheus("http://p.test"), None, lambda *_: [])
    assert "no recent series" in empty.read([POOL], 300.0, 5000.0)[POOL].problem
    # Where the pods are in this cluster they must run what was predicted.
    other = PrometheusSource(Prometheus("http://p.test"), lambda _: [pod("a", container={"args": []})], query)
    assert "run another image or other arguments" in other.read([POOL], 300.0, 5000.0)[POOL].problem


@pytest.mark.parametrize(
    "url", ["ftp://p.test", "http://user:pw@p.test", "http:///x", "http://p.test/?a=b", "file:///etc/passwd"]
)
def test_only_plain_urls_are_asked(url: str) -> None:
    with pytest.raises(InputError):
        PrometheusApi(Prometheus(url))


def test_secrets_go_over_https_only_and_into_no_text() -> None:
    with pytest.raises(InputError, match="https"):
        PrometheusApi(Prometheus("http://p.test", token="hush"))
    assert "hush" not in repr(Prometheus("https://p.test", token="hush", password="hush"))
    with pytest.raises(InputError, match="PEM"):
        PrometheusApi(Prometheus("https://p.test", authority="no"))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"<html>", "not an answer"),
        (json.dumps({"status": "error", "error": "secret"}).encode(), "the query failed"),
        (json.dumps({"status": "success", "data": {"resultType": "matrix", "result": {}}}).encode(), "not an answer"),
    ],
)
def test_what_is_no_answer_is_refused_and_not_repeated(
    body: bytes, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "fetch", lambda *_, **__: body)
    api = PrometheusApi(Prometheus("https://p.test", token="t"))
    with pytest.raises(PageError, match=problem) as caught:
        api.query_range("up", 0.0, 1.0, 1.0)
    assert "secret" not in str(caught.value)
    api.close()
