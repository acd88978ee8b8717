"""`make harvest-cpu`: harvest the real vLLM on this machine's CPU, then predict closed loops that no sweep holds.

The harvester starts vLLM with its own flags, measures it and writes an anchor; then the same engine runs a closed loop
at two other concurrencies, and the simulator predicts both from the anchor alone. The command fails when the anchor is
not complete, is not marked as a CPU's, or could be chosen for a GPU. The errors are printed and judged by people: on a
shared machine nobody can promise them. `e2e.harvest_check` is what CI runs of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import typing
import urllib.error
import urllib.request

from e2e import cpu_engine, errors, processes, progress
from simcore.anchors.checks import check_anchor
from simcore.anchors.schema import Anchor, load_anchor
from simcore.anchors.select import Target, select_anchor
from simcore.cards.layout import Engine, Layout
from simcore.des.closed_loop import closed_loop
from simcore.des.config import SchedulerConfig
from simcore.stepcost.anchored import anchored

MODEL: typing.Final = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408,
    "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
}  # fmt: skip
"""A Llama of 46 million parameters: its steps are long against the front end's work, and short enough to repeat."""
MAX_RUNNING, TOKEN_BUDGET, MODEL_LENGTH_TOKENS = 32, 2048, 4096
BATCHES, PREFILL_LENGTHS = (1, 2, 4, 8, 16), (64, 128, 256, 512, 1024)
PROMPT_TOKENS, OUTPUT_TOKENS, REQUESTS_EACH = 128, 64, 6
CONCURRENCIES: typing.Final = (3, 12)
"""Neither is a batch of the sweep."""
START_TIMEOUT_S = 600.0
HARVESTER: typing.Final = (sys.executable, "-m", "inferasim_harvester")
CERTAIN: typing.Final = {
    "effective-configuration": "pass", "engine-version": "pass", "output-length": "pass", "served-length": "pass",
    "prefix-caching": "pass", "real-weights": "refuse", "served-model": "pass", "stream-ends": "pass",
    "kv-pool": "pass",
}  # fmt: skip
"""Verdicts that do not depend on how busy the machine is."""


NOISE: typing.Final = ("monotone-sweep", "spread", "precision", "drift", "steadiness", "batch-growth", "stalls")
"""Checks that other work on the machine fails."""


class HarvestFailedError(Exception):
    """What this command promises did not come true."""


def main(arguments: list[str] | None = None) -> int:
    """0 when the anchor is complete and marked; 1 with the reason otherwise."""
    parser = argparse.ArgumentParser(prog="python -m e2e.harvest_cpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="keep anchor, result and logs here")
    parser.add_argument("--max-repeats", type=int, default=16)
    given = parser.parse_args(arguments)
    started_s = time.monotonic()
    try:
        engine = cpu_engine.ensure()
        with tempfile.TemporaryDirectory(prefix="harvest-cpu-") as work:
            out = given.out if given.out is not None else pathlib.Path(work) / "out"
            _compare(prepare(engine, pathlib.Path(work), out.absolute(), given.max_repeats))
    except (HarvestFailedError, errors.E2EError) as error:
        print(f"harvest-cpu failed: {error}", file=sys.stderr)
        return 1
    print(f"done in {time.monotonic() - started_s:.0f} s")
    return 0


def harvest_spec(model: pathlib.Path) -> dict[str, typing.Any]:
    """The harvest spec of the small model at `model`."""
    flags = [f"--max-model-len={MODEL_LENGTH_TOKENS}", f"--max-num-seqs={MAX_RUNNING}"]
    return {
        "schema": "inferasim.dev/harvest/v1",
        "engine": {
            "name": "VLLM",
            "version": cpu_engine.VERSION,
            "extraArgs": ["--skip-tokenizer-init", *flags, f"--max-num-batched-tokens={TOKEN_BUDGET}"],
        },
        "model": {"name": "small-llama", "path": str(model), "weights": "Dummy"},
        "accelerator": {"product": "CPU"},
        "signature": {"graphCapture": "Disabled"},
        "sweeps": {
            "decodeBatches": list(BATCHES),
            "decodePromptLengthsTokens": [PROMPT_TOKENS],
            "prefillLengthsTokens": list(PREFILL_LENGTHS),
        },
    }


def complaints(anchor: Anchor) -> list[str]:
    """What is wrong with the anchor of a CPU, apart from how long its steps are; empty when nothing is."""
    found = []
    batches = tuple(point.batch for point in anchor.decode[0].points)
    lengths = tuple(point.prompt_tokens for point in anchor.prefill.points)
    if (batches, lengths) != (BATCHES, PREFILL_LENGTHS):
        found.append(f"incomplete: batches {batches}, prompt lengths {lengths}")
    verdicts = {check.name: (check.verdict.value, check.detail) for check in check_anchor(anchor)}
    for name, wanted in CERTAIN.items():
        verdict, detail = verdicts.get(name, ("missing", ""))
        if verdict != wanted:
            found.append(f"check {name}: {verdict}, not {wanted}: {detail}")
    for product, dummy in (("MI355X", False), ("MI300X", True)):
        target = Target(accelerator=product, engine="VLLM", model=anchor.signature.model, tensor_parallel=1)
        selection = select_anchor(target, [anchor], allow_dummy_weights=dummy)
        reasons = [reason for refusal in selection.refusals.values() for reason in refusal]
        if selection.chosen is not None or not any("CPU" in reason for reason in reasons):
            found.append(f"not refused for {product} as a CPU's: {reasons}")
    return found


def comparison(anchor: Anchor, live: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """A measured closed loop beside the prediction of it from `anchor`; milliseconds and tokens per second."""
    concurrency = int(live["concurrency"])
    pool = anchor.memory.kv_pool_tokens if anchor.memory is not None else None
    if pool is None:
        raise HarvestFailedError("the anchor does not say how many tokens the KV cache holds")
    run = closed_loop(
        anchored(anchor, layout=Layout()).table(concurrency),
        SchedulerConfig(Engine.VLLM, MAX_RUNNING, TOKEN_BUDGET, TOKEN_BUDGET, pool),
        concurrency=concurrency,
        requests=concurrency * (REQUESTS_EACH + 1),
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        warmup_requests=concurrency,  # the opening wave is dropped on both sides
    )
    pairs = {
        "tpotMs": (float(run.tpot_s.mean()) * 1e3, live["tpotMs"]),
        "tokensPerSecond": (run.output_tokens_per_s, live["throughputTokensPerSecond"]),
        "ttftMs": (float(run.ttft_s.mean()) * 1e3, live["ttftMs"]),
    }
    return {
        "concurrency": concurrency,
        **{name: {"predicted": p, "measured": m, "error": p / m - 1.0} for name, (p, m) in pairs.items()},
    }


@dataclasses.dataclass(frozen=True)
class Setting:
    """One harvest of the engine on this machine: where everything is."""

    work: pathlib.Path
    out: pathlib.Path
    port: int
    environment: dict[str, str]
    max_repeats: int

    @property
    def spec(self) -> pathlib.Path:
        return self.out / "spec.json"


def prepare(engine: pathlib.Path, work: pathlib.Path, out: pathlib.Path, max_repeats: int = 3) -> Setting:
    """Writes the model and the spec. Few repeats unless said: what is not about step times needs no more."""
    model = work / "small-llama"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    environment = {
        **os.environ,
        **cpu_engine.ENVIRONMENT,
        "HOME": str(work),
        "PATH": f"{engine / 'shim'}{os.pathsep}{os.environ['PATH']}",
    }
    setting = Setting(work, out, free_port(), environment, max_repeats)
    out.mkdir(parents=True, exist_ok=True)
    setting.spec.write_text(json.dumps(harvest_spec(model)), encoding="utf-8")
    return setting


def command(setting: Setting) -> list[str]:
    """The harvester's command line; the same one again continues the harvest."""
    bounds = ["--max-repeats", str(setting.max_repeats), "--start-timeout", str(START_TIMEOUT_S)]
    return [*HARVESTER, "run", *_at(setting), "--out", str(setting.out), *bounds]


def run(setting: Setting, log_name: str) -> pathlib.Path:
    """A harvest to its end; its log. Raises HarvestFailedError."""
    return _call(command(setting), setting.work / log_name, setting.environment, progress.Progress())


def _at(setting: Setting) -> list[str]:
    return ["--spec", str(setting.spec), "--port", str(setting.port)]


def _compare(setting: Setting) -> None:
    print(processes.tail(run(setting, "harvest.log"), lines=1))
    anchor = load_anchor(setting.out / "anchor.json")
    for check in check_anchor(anchor):
        print(f"  {check.verdict.value:7} {check.name}: {check.detail}")
    found = complaints(anchor)
    if found:
        raise HarvestFailedError("; ".join(found))
    print(f"anchor complete: {anchor.label}, refused for AMD GPUs")
    for live in _measure(setting):
        print(_sentence(comparison(anchor, live)))
    disturbed = [check.name for check in check_anchor(anchor) if check.name in NOISE and check.verdict != "pass"]
    if disturbed:
        print(f"the machine was disturbed ({', '.join(disturbed)}): such errors say little of the method")


def _measure(setting: Setting) -> list[dict[str, typing.Any]]:
    """The closed loops, on the engine as the harvester would start it."""
    at, environment, work, port = _at(setting), setting.environment, setting.work, setting.port
    shown = progress.Progress()
    told = subprocess.run([*HARVESTER, "command", *at], capture_output=True, text=True, check=True, env=environment)
    argv = shlex.split(told.stdout)
    argv[0] = str(pathlib.Path(environment["PATH"].split(os.pathsep)[0]) / argv[0])
    engine_log = work / "engine.log"
    process = processes.spawn(argv, log=engine_log, environment=environment)
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not _answers(f"http://127.0.0.1:{port}/v1/models"):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise HarvestFailedError(f"vLLM did not start again:\n{processes.tail(engine_log)}")
            shown.update("starting vLLM again for the closed loops")
            time.sleep(0.5)
        url = ["--engine-url", f"http://127.0.0.1:{port}", "--concurrency", *map(str, CONCURRENCIES)]
        size = ["--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)]
        probe = [*HARVESTER, "probe", *at, *url, *size, "--requests-each", str(REQUESTS_EACH)]
        log = _call(probe, work / "probe.log", environment, shown)
    finally:
        processes.end(process, grace_s=20.0)
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    if [row["concurrency"] for row in rows] != list(CONCURRENCIES):
        raise HarvestFailedError(f"the closed loops said:\n{processes.tail(log)}")
    return rows


def _call(argv: list[str], log: pathlib.Path, environment: dict[str, str], shown: progress.Progress) -> pathlib.Path:
    """Runs a harvester command to its end with its last words on the line; its log. Raises HarvestFailedError."""
    process = processes.spawn(argv, log=log, environment=environment)
    try:
        while process.poll() is None:
            shown.update(message(processes.tail(log, lines=1)))
            time.sleep(0.5)
    finally:
        processes.end(process, grace_s=60.0)
    if process.returncode != 0:
        raise HarvestFailedError(f"`{argv[3]}` ended with code {process.returncode}:\n{processes.tail(log)}")
    return log


def said(line: str) -> dict[str, typing.Any]:
    """One report of the harvester, by its log line; empty when it is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) and "phase" in found else {}


def message(line: str) -> str:
    """A log line of the harvester for people."""
    found = said(line)
    return f"{found['phase']}: {found['message']}" if found else line


def _sentence(found: dict[str, typing.Any]) -> str:
    words = [f"closed loop of {found['concurrency']:2d}:"]
    for name in ("tpotMs", "tokensPerSecond", "ttftMs"):
        pair = found[name]
        words.append(
            f"{name} {pair['predicted']:.2f} predicted, {pair['measured']:.2f} measured ({pair['error']:+.1%})"
        )
    return "  ".join(words)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
