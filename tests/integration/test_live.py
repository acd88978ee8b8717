"""Live figures by an operator process: from a real Prometheus, and from pods; right values, reasons, and the end."""

from __future__ import annotations

import copy
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.conditions import assert_conditions
from tests.integration import live_pages
from tests.integration.harness import Cluster, Operator, until

MakeOperator = Callable[..., Operator]
GOLDEN = Path(__file__).parents[1] / "golden/manifests"
WINDOW_S = 30
# Promised: TTFT 0.4 s (0.5 is +25 %), TPOT 25 ms (20 is -20 %), 500 tok/s on each of two GPUs (1010 on both is +1 %).
PREDICTED = {"ttftMilliseconds": 400, "tpotMicroseconds": 25_000, "tokensPerSecondPerGpu": 500}


def mix(name: str, engine: str, observation: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A mix of one replica that is promised the load of the pages; keywords replace fields of its configuration."""
    document: dict[str, Any] = yaml.load((GOLDEN / f"{engine}-one-node/mix.yaml").read_text(), yaml.CSafeLoader)
    document["metadata"] = {"name": name}
    spec = document["spec"]
    del spec["namespace"]
    spec.pop("monitoring", None)
    (named,) = spec["configurations"]
    named["predicted"] = PREDICTED
    named["configuration"] |= {
        "concurrency": int(live_pages.IN_FLIGHT),
        "promptTokens": int(live_pages.PROMPT_TOKENS),
        "outputTokens": int(live_pages.OUTPUT_TOKENS),
        "layout": {"tensorParallel": 2},
        "replicas": 1,
        **changes,
    }
    spec["observation"] = {**observation, "windowSeconds": WINDOW_S}
    spec["tolerance"] = {"ttftPermille": 100, "tpotPermille": 300, "throughputPermille": 100}
    return document


def series(operator: Operator, name: str, mix_name: str) -> float | None:
    """One value on the operator's page; None when there is none."""
    found = re.findall(r"health and metrics on port (\d+)", operator.text)
    answer = httpx.get(f"http://127.0.0.1:{found[-1]}/metrics", timeout=5.0, trust_env=False)
    values = [
        sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == name and sample.labels.get("mix") == mix_name
    ]
    assert len(values) <= 1
    return values[0] if values else None


def mixes_on_page(operator: Operator) -> set[str]:
    found = re.findall(r"health and metrics on port (\d+)", operator.text)
    text = httpx.get(f"http://127.0.0.1:{found[-1]}/metrics", timeout=5.0, trust_env=False).text
    return set(re.findall(r'mix="([^"]+)"', text))


@pytest.fixture
def pages() -> Iterator[live_pages.Pages]:
    by_path = {"/vllm": live_pages.vllm, "/metrics": live_pages.vllm, "/atom": live_pages.atom}
    with live_pages.Pages(by_path) as served:
        yield served


@pytest.fixture
def prometheus(cluster: Cluster, pages: live_pages.Pages, tmp_path: Path) -> Iterator[str]:
    """A real Prometheus that scrapes the pages every second, as the emitted PodMonitors would have it labelled."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("needs the program `prometheus` (Debian package of the same name)")
    jobs = []
    for name, path in (("good", "/vllm"), ("other", "/vllm"), ("atom", "/atom")):
        labels = {
            "namespace": cluster.namespace,
            "pod": f"{name}-interactive-0",
            "inferasim_dev_mix": name,
            "inferasim_dev_deployment": "interactive",
            "inferasim_dev_pool": "colocated",
        }
        target = {"targets": [f"127.0.0.1:{pages.port}"], "labels": labels}
        jobs.append({"job_name": name, "metrics_path": path, "static_configs": [target]})
    config = tmp_path / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


def raw_increase(url: str, metric: str, mix_name: str) -> tuple[float, float]:
    """Increase and seconds between the first and the last raw sample of a window, straight from Prometheus."""
    query = f'{metric}{{inferasim_dev_mix="{mix_name}"}}[{WINDOW_S}s]'
    answer = httpx.get(f"{url}/api/v1/query", params={"query": query}, timeout=10.0, trust_env=False).json()
    (found,) = answer["data"]["result"]
    (first_s, first), (last_s, last) = found["values"][0], found["values"][-1]
    return float(last) - float(first), last_s - first_s


def test_figures_from_a_real_prometheus(cluster: Cluster, operator: MakeOperator, prometheus: str) -> None:
    """Errors as recomputed from the raw samples; another load gives a reason and no number; all ends with the mix."""
    op = operator()
    op.start()
    source = {"prometheusUrl": prometheus}
    cluster.apply(
        mix("good", "vllm", source),
        mix("other", "vllm", source, promptTokens=4000),
        mix("atom", "atom", source, graphCaptureSizes=[1, 2, 4, 8, 16, 32]),
    )
    op.until_passes("DeploymentMix", 3)
    until(lambda: series(op, "inferasim_prediction_ttft_error_ratio", "good") is not None, "an error", timeout_s=90)
    until(lambda: series(op, "inferasim_prediction_throughput_error_ratio", "atom") is not None, "ATOM's", timeout_s=90)

    def raw_mean(metric: str) -> float:
        sums, counts = (raw_increase(prometheus, f"vllm:{metric}_seconds_{end}", "good")[0] for end in ("sum", "count"))
        return sums / counts

    ttft_s, tpot_s = raw_mean("time_to_first_token"), raw_mean("request_time_per_output_token")
    tokens, duration_s = raw_increase(prometheus, "vllm:generation_tokens_total", "good")
    by_hand = {
        "inferasim_observed_ttft_seconds": ttft_s,
        "inferasim_prediction_ttft_error_ratio": ttft_s / 0.4 - 1,
        "inferasim_prediction_tpot_error_ratio": tpot_s / 0.025 - 1,
    }
    for name, value in by_hand.items():
        assert series(op, name, "good") == pytest.approx(value, rel=1e-3)
    # The window moved on since, and scrapes are not on the second: the rate itself is constant.
    observed = series(op, "inferasim_observed_output_tokens_per_second_per_gpu", "good")
    assert observed == pytest.approx(tokens / duration_s / 2, rel=0.02)
    assert series(op, "inferasim_observed_ttft_seconds", "good") == pytest.approx(live_pages.TTFT_S, rel=1e-3)

    tokens, duration_s = raw_increase(prometheus, "atom:generation_tokens_total", "atom")
    error = series(op, "inferasim_prediction_throughput_error_ratio", "atom")
    assert error == pytest.approx(tokens / duration_s / 2 / 500 - 1, abs=0.02)
    assert series(op, "inferasim_prediction_ttft_error_ratio", "atom") is None

    assert series(op, "inferasim_live_comparable", "other") == 0
    assert series(op, "inferasim_observed_ttft_seconds", "other") is None
    assert series(op, "inferasim_prediction_ttft_error_ratio", "other") is None

    path = '.status.conditions[?(@.type=="PredictionWithinTolerance")].status'
    live = cluster.wait_for("deploymentmix", "good", path, "False")
    assert_conditions(live)
    (deployment,) = live["status"]["deployments"]
    assert deployment["error"] == {"ttftPermille": 250, "tpotPermille": -200, "throughputPermille": 10}
    assert deployment["observed"]["ttftMilliseconds"] == 500
    assert deployment["observedReplicas"] == 1

    def events() -> list[tuple[str, str]]:
        found = json.loads(cluster.kubectl("get", "events", "-o", "json"))["items"]
        return [(e["type"], e["involvedObject"]["name"]) for e in found if e["reason"] == "OutOfTolerance"]

    until(lambda: bool(events()), "the event, which follows the status")

    def told_of_other() -> dict[str, Any]:
        (found,) = cluster.get("deploymentmix", "other")["status"]["deployments"]
        return dict(found)

    # The first words are that the window is not whole yet; the next are told half a minute later.
    text = "mean prompt length is 1000, predicted for 4000"
    until(lambda: text in told_of_other()["incomparable"], "the reason in the status")
    other = told_of_other()
    assert "error" not in other
    assert "observed" not in other
    assert events() == [("Warning", "good")], "once, and for no other mix"

    cluster.kubectl("delete", "deploymentmix", "good", "other", "atom")
    until(lambda: not mixes_on_page(op), "no series of a deleted mix")


def test_figures_from_the_pods(cluster: Cluster, operator: MakeOperator, pages: live_pages.Pages) -> None:
    """Pods of the mix are scraped; one that runs other arguments than were predicted ends the comparison."""
    op = operator()
    op.start()
    cluster.apply(mix("chat", "vllm", {}))
    live = cluster.wait("deploymentmix", "chat", "Ready")
    kept = cluster.get("configmap", live["status"]["manifests"]["configMap"])
    manifests = yaml.load_all(kept["data"]["manifests.yaml"], yaml.CSafeLoader)
    template = next(m for m in manifests if m["kind"] == "Deployment")["spec"]["template"]
    start_pod(cluster, template, "chat-0", pages.port)
    began_s = time.monotonic()
    until(lambda: series(op, "inferasim_prediction_ttft_error_ratio", "chat") is not None, "an error", timeout_s=90)
    assert time.monotonic() - began_s > 0.9 * WINDOW_S
    assert series(op, "inferasim_prediction_ttft_error_ratio", "chat") == pytest.approx(0.25, rel=1e-3)
    assert series(op, "inferasim_prediction_tpot_error_ratio", "chat") == pytest.approx(-0.2, rel=1e-3)
    assert series(op, "inferasim_observed_output_tokens_per_second_per_gpu", "chat") == pytest.approx(505, rel=0.05)
    assert series(op, "inferasim_observed_kv_cache_usage_ratio", "chat") == pytest.approx(0.4)
    assert series(op, "inferasim_live_replicas", "chat") == 1

    changed = copy.deepcopy(template)
    changed["spec"]["containers"][0]["args"].append("--enforce-eager")
    start_pod(cluster, changed, "chat-1", pages.port)
    until(lambda: series(op, "inferasim_prediction_ttft_error_ratio", "chat") is None, "no error any more")
    assert series(op, "inferasim_live_comparable", "chat") == 0
    requests: Iterable[Any] = cluster.operator_requests()
    assert not [event for event in requests if event.is_forbidden]
    writes: Iterable[Any] = cluster.operator_writes()
    status_writes = [e for e in writes if (e.resource, e.subresource) == ("deploymentmixes.inferasim.dev", "status")]
    assert 1 < len(status_writes) <= 3 + (time.monotonic() - began_s) / 30


def start_pod(cluster: Cluster, template: dict[str, Any], name: str, port: int) -> None:
    """A pod of the template that listens on the loopback; there is no kubelet, so its status is written here."""
    pod = copy.deepcopy(template)
    pod |= {"apiVersion": "v1", "kind": "Pod", "metadata": {**pod["metadata"], "name": name}}
    container = pod["spec"]["containers"][0]
    container["ports"] = [{"containerPort": port, "name": "http", "protocol": "TCP"}]
    cluster.apply(pod)
    ready = {"type": "Ready", "status": "True"}
    address = "127.0.0.1"
    status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [ready]}}
    cluster.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
