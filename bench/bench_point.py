"""One configuration at one load, beside aiconfigurator 0.12 in the same run: `python -m bench.bench_point`.

Qwen3-32B-FP8 at TP4 with 64 requests of 4,000 prompt and 1,000 output tokens in flight, in CPU seconds of one process
each, the best of several, imports and data files left out. Theirs is a static estimate on H200 (it knows no AMD GPU);
ours is a step law built from the cards and 640 requests simulated one by one on MI355X. Exits 1 if ours is slower.
"""

from __future__ import annotations

import sys

from bench.bench_des import best
from bench.bench_peer import PACKAGE
from bench.peers import ask, interpreter
from simcore.cards.layout import Engine, Layout
from simcore.cards.library import load_accelerator_card, load_model_card
from simcore.prediction.predictor import Mode, Predictor, Setting
from simcore.prediction.shapes import EngineOption, Shape

PROMPT_TOKENS, OUTPUT_TOKENS, CONCURRENCY, WIDTH = 4000, 1000, 64, 4
THEIRS = f"""
import contextlib, io, json, time
from aiconfigurator.cli.api import cli_estimate
found = []
for _ in range(5):
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        cli_estimate("Qwen/Qwen3-32B-FP8", "h200_sxm", backend_name="trtllm", isl={PROMPT_TOKENS}, osl={OUTPUT_TOKENS},
                     batch_size={CONCURRENCY}, tp_size={WIDTH})
    found.append(time.process_time() - start)
print(json.dumps(found))
"""


def ours() -> None:
    """From cards to a prediction with tails."""
    card, accelerator = load_model_card("Qwen3-32B-FP8"), load_accelerator_card("MI355X")
    setting = Setting(card, accelerator, {}, Mode.SIMULATE, PROMPT_TOKENS, OUTPUT_TOKENS)
    predictor = Predictor(setting)
    shape = predictor.shape(EngineOption(Engine.SGLANG), Layout(tensor_parallel=WIDTH), gpus_per_node=8)
    assert isinstance(shape, Shape)  # noqa: S101 - a bench
    predictor.predict(shape, CONCURRENCY)


def main() -> int:
    """Ask both; judge."""
    ours()  # loads the compiled kernel
    mine = best(ours)
    print(f"ours: {mine * 1e3:.1f} ms", flush=True)
    python = interpreter(PACKAGE)
    theirs = python if isinstance(python, str) else ask(python, ["-c", THEIRS], None)
    if isinstance(theirs, str):
        print(f"{PACKAGE}: skipped: {theirs}")
        return 0
    first, *warm = theirs
    print(f"{PACKAGE}: {min(warm) * 1e3:.0f} ms, the first {first * 1e3:.0f} ms; ratio {min(warm) / mine:,.0f}")
    return 0 if mine < min(warm) else 1


if __name__ == "__main__":
    sys.exit(main())
