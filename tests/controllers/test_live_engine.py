"""A real vLLM under load, scraped by a real Prometheus: every exported figure recomputed by hand from the raw samples.

vLLM runs on this machine's CPU (`make harvest-cpu` installs it), ATOM is a page; the observation is the operator's own.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from e2e import cpu_engine, harvest_cpu, processes
from inferasim_operator.api.v1alpha1.deploymentmix import DeploymentMix
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.kinds.deploymentmix import live, render
from inferasim_operator.live.export import LiveCollector
from inferasim_operator.live.loop import LiveLoop
from inferasim_operator.live.prometheus import PrometheusSource
from inferasim_operator.live.request import Prometheus, Report, Request
from tests.integration import live_pages

GOLDEN = Path(__file__).parents[1] / "golden/manifests"
WINDOW_S = 60
EVALUATIONS_S = 5.0
CLIENTS, PROMPT_TOKENS = 6, 128
LENGTHS = range(16, 49)
OUTPUT_TOKENS = 32
"""The mean of the lengths: requests of one length would all end together, and a gauge be read between them."""
PREDICTED = {"ttftMilliseconds": 50, "tpotMicroseconds": 10_000, "tokensPerSecondPerGpu": 200}
START_S = 600.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def wait(holds: Callable[[], bool], what: str, *, timeout_s: float) -> None:
    deadline_s, pause = time.monotonic() + timeout_s, threading.Event()
    while not holds():
        assert time.monotonic() < deadline_s, what
        pause.wait(0.2)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a vLLM with dummy weights that serves token ids."""
    place = cpu_engine.folder()
    if not (place / ".ready").exists():
        pytest.skip("vLLM for CPUs is not installed: run `make harvest-cpu`")
    work = tmp_path_factory.mktemp("engine")
    (work / "config.json").write_text(json.dumps(harvest_cpu.MODEL))
    port = free_port()
    flags = [
        f"--served-model-name={live_pages.VLLM_MODEL}",
        "--host=127.0.0.1",
        f"--port={port}",
        "--load-format=dummy",
        "--enforce-eager",
    ]
    flags += ["--no-enable-prefix-caching", "--skip-tokenizer-init", "--max-model-len=512", "--max-num-seqs=8"]
    command = [str(place / "shim" / "vllm"), "serve", str(work), *flags, "--max-num-batched-tokens=512"]
    environment = {**os.environ, **cpu_engine.ENVIRONMENT, "HOME": str(work)}
    process = processes.spawn(command, log=work / "log", environment=environment)
    try:
        wait(lambda: answers(f"http://127.0.0.1:{port}/health") or process.poll() is not None, "up", timeout_s=START_S)
        assert process.poll() is None, processes.tail(work / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        processes.end(process, grace_s=20.0)


@pytest.fixture(scope="module")
def load(engine: str) -> Iterator[None]:
    """Clients that each have one request in flight, until the test is over."""
    over = threading.Event()

    def client(number: int) -> None:
        with httpx.Client(timeout=120.0, trust_env=False) as session:
            for turn in range(1_000_000):
                if over.is_set():
                    return
                prompt = [(7 * number + 13 * turn + 3 * place) % 30_000 + 10 for place in range(PROMPT_TOKENS)]
                length = LENGTHS[(11 * number + 7 * turn) % len(LENGTHS)]
                body = {"model": live_pages.VLLM_MODEL, "prompt": prompt, "max_tokens": length, "ignore_eos": True}
                session.post(f"{engine}/v1/completions", json={**body, "detokenize": False}).raise_for_status()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join(timeout=120.0)


@pytest.fixture(scope="module")
def prometheus(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prometheus that scrapes vLLM and a page of ATOM's, labelled as the emitted PodMonitors would have it."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("needs the program `prometheus` (Debian package of the same name)")
    work = tmp_path_factory.mktemp("prometheus")
    with live_pages.Pages({"/metrics": live_pages.atom}) as pages:
        jobs = []
        for name, target in (("good", engine), ("other", engine), ("atom", f"http://127.0.0.1:{pages.port}")):
            labels = {
                "namespace": "serving",
                "pod": f"{name}-0",
                "inferasim_dev_mix": name,
                "inferasim_dev_deployment": "interactive",
                "inferasim_dev_pool": "colocated",
            }
            jobs.append(
                {
                    "job_name": name,
                    "static_configs": [{"targets": [target.removeprefix("http://")], "labels": labels}],
                }
            )
        config = work / "prometheus.yml"
        config.write_text(yaml.safe_dump({"global": {"scrape_interval": "2s"}, "scrape_configs": jobs}))
        url = f"http://127.0.0.1:{free_port()}"
        command = [program, f"--config.file={config}", f"--storage.tsdb.path={work / 'data'}"]
        command += [f"--web.listen-address={url.removeprefix('http://')}", "--log.level=warn"]
        process = processes.spawn(command, log=work / "log")
        try:
            wait(lambda: answers(f"{url}/-/ready"), "Prometheus is ready", timeout_s=60.0)
            yield url
        finally:
            processes.end(process, grace_s=20.0)


def request(name: str, engine_name: str, url: str, **changes: Any) -> Request:
    """What the operator would observe for a mix of one replica that is promised this load."""
    document = yaml.load((GOLDEN / f"{engine_name}-one-node/mix.yaml").read_text(), yaml.CSafeLoader)
    document["metadata"] = {"name": name, "namespace": "serving"}
    (named,) = document["spec"]["configurations"]
    named["predicted"] = PREDICTED
    named["configuration"] |= {
        "concurrency": CLIENTS,
        "promptTokens": PROMPT_TOKENS,
        "outputTokens": OUTPUT_TOKENS,
        "layout": {"tensorParallel": 1},
        "replicas": 1,
        **changes,
    }
    document["spec"]["observation"] = {"prometheusUrl": url, "windowSeconds": WINDOW_S}
    mix = DeploymentMix.model_validate(document)
    emission = render.emission(name, "serving", mix.spec, None)
    return live.request(mix, emission, Prometheus(url))


@dataclass(frozen=True)
class Raw:
    """Raw samples of one mix's target, straight from Prometheus: the last one at or before each end of the window."""

    url: str
    mix: str
    now_s: float

    def ends(self, metric: str) -> tuple[tuple[float, float], tuple[float, float]]:
        query = f'{metric}{{inferasim_dev_mix="{self.mix}"}}[{WINDOW_S + 30}s]'
        asked = {"query": query, "time": f"{self.now_s:.3f}"}
        answer = httpx.get(f"{self.url}/api/v1/query", params=asked, timeout=10.0, trust_env=False).json()
        (series,) = answer["data"]["result"]
        samples = [(float(at_s), float(text)) for at_s, text in series["values"]]
        first_s = self.now_s - WINDOW_S - EVALUATIONS_S
        return max(sample for sample in samples if sample[0] <= first_s), samples[-1]

    def increase(self, metric: str) -> float:
        (_, first), (_, last) = self.ends(metric)
        return last - first

    def mean(self, metric: str) -> float:
        return self.increase(f"{metric}_sum") / self.increase(f"{metric}_count")

    def rate(self, metric: str) -> float:
        (first_s, _), (last_s, _) = self.ends(metric)
        return self.increase(metric) / (last_s - first_s)


def series(collector: LiveCollector, mix: str) -> dict[str, float]:
    """Series of a mix without further labels, by name."""
    return {
        sample.name: sample.value
        for family in collector.collect()
        for sample in family.samples
        if sample.labels["mix"] == mix and "quantile" not in sample.labels
    }


@pytest.mark.slow
@pytest.mark.usefixtures("load")
def test_the_figures_of_a_real_engine_are_those_of_its_own_counters(prometheus: str) -> None:
    now = [0.0]
    collector = LiveCollector()
    loop = LiveLoop(collector, words=live.words, workers=0, monotonic_s=lambda: now[0], wall_s=lambda: now[0])
    requests = {
        "good": request("good", "vllm", prometheus),
        "other": request("other", "vllm", prometheus, promptTokens=4 * PROMPT_TOKENS),
        "atom": request(
            "atom",
            "atom",
            prometheus,
            concurrency=int(live_pages.IN_FLIGHT),
            promptTokens=int(live_pages.PROMPT_TOKENS),
            outputTokens=int(live_pages.OUTPUT_TOKENS),
        ),
    }
    threading.Event().wait(WINDOW_S + 20)  # a window of load, and what may be before its first sample
    now[0] = time.time()
    owners = {name: ObjectKey("serving", name) for name in requests}
    try:
        for name, wanted in requests.items():
            loop.want(owners[name], wanted, lambda: PrometheusSource(Prometheus(prometheus)))
        loop.step()
        check_vllm(collector, Raw(prometheus, "good", now[0]), loop.known(owners["good"]))
        check_atom(collector, Raw(prometheus, "atom", now[0]))
        check_other(collector, loop.known(owners["other"]))
    finally:
        for owner in owners.values():
            loop.forget(owner)
    assert not [name for name in owners if series(collector, name)], "no series of a mix that is gone"


def check_vllm(collector: LiveCollector, raw: Raw, report: Report | None) -> None:
    good = series(collector, "good")
    assert good["inferasim_live_comparable"] == 1, report
    ttft_s = raw.mean("vllm:time_to_first_token_seconds")
    tpot_s = raw.mean("vllm:request_time_per_output_token_seconds")
    tokens_per_s = raw.rate("vllm:generation_tokens_total")
    print(f"vLLM: TTFT {ttft_s * 1e3:.1f} ms, TPOT {tpot_s * 1e3:.2f} ms, {tokens_per_s:.1f} tok/s")
    by_hand = {
        "inferasim_observed_ttft_seconds": ttft_s,
        "inferasim_observed_tpot_seconds": tpot_s,
        "inferasim_observed_output_tokens_per_second_per_gpu": tokens_per_s,
        "inferasim_prediction_ttft_error_ratio": ttft_s / 0.05 - 1,
        "inferasim_prediction_tpot_error_ratio": tpot_s / 0.01 - 1,
        "inferasim_prediction_throughput_error_ratio": tokens_per_s / 200 - 1,
    }
    assert {name: good[name] for name in by_hand} == pytest.approx(by_hand, rel=1e-6)


def check_atom(collector: LiveCollector, raw: Raw) -> None:
    atom = series(collector, "atom")
    rate = raw.rate("atom:generation_tokens_total")
    assert atom["inferasim_prediction_throughput_error_ratio"] == pytest.approx(rate / 200 - 1, rel=1e-6)
    assert "inferasim_prediction_ttft_error_ratio" not in atom


def check_other(collector: LiveCollector, report: Report | None) -> None:
    other = series(collector, "other")
    assert other["inferasim_live_comparable"] == 0
    assert not [name for name in other if "error" in name or "observed" in name]
    assert report is not None
    ((_, comparison),) = report.comparisons.items()
    assert comparison.reasons == (f"mean prompt length is {PROMPT_TOKENS}, predicted for {4 * PROMPT_TOKENS}",)
