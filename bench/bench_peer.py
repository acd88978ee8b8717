"""Side by side with aiconfigurator 0.12 on its own question: one model, 32 GPUs, all layouts, colocated and split.

It runs in a virtual environment of its own, made on first use under the user's cache (about 850 MB, nothing of it in
this tree); without a package index the comparison is skipped and says so. The two answer for different GPUs, because it
knows no AMD ones and we plan no others: what is compared is how many candidates a second each looks at. Its count is
the rows it reports, by its own interpolated step times; ours is candidates, each from a simulated run. CPU seconds of
the search alone, which a shared machine disturbs least. Exits 1 below ten times.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.peers import ask, interpreter
from simcore.cards.layout import Engine
from simcore.cards.library import load_accelerator_card, load_model_card
from simcore.laws.handoff import HandoffBackend
from simcore.prediction.predictor import Mode, Predictor, Setting
from simcore.prediction.shapes import EngineOption
from simcore.search import plan, split

PACKAGE = "aiconfigurator==0.12.0"
GPUS, NODES = 32, 4
FLOOR = 10.0
LOADS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Clients; a simulated run takes longer the more there are (about 0.8 ms at 4, 6 ms at 256)."""


@dataclass(frozen=True)
class Case:
    """One question to both."""

    model: str
    peer_model: str
    peer_backend: str
    prompt_tokens: int
    output_tokens: int


CASES = (
    Case("Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8", "trtllm", 4000, 1000),
    Case("DeepSeek-V3", "deepseek-ai/DeepSeek-V3", "sglang", 8192, 1024),
)


PEER_SCRIPT = """
import json, logging, os, re, sys
rows = {}

class Rows(logging.Handler):
    def emit(self, record):
        told = re.search(r"Experiment (\\w+) completed with (\\d+) results", record.getMessage())
        if told:
            rows[told[1]] = int(told[2])

from aiconfigurator.cli.api import cli_default
import aiconfigurator.cli.main as command
command.logger.addHandler(Rows())
command.logger.setLevel(logging.INFO)
cpu = os.times()
cli_default(**json.load(sys.stdin))
print(json.dumps([rows, sum(os.times()[:4]) - sum(cpu[:4])]))
"""


def ask_peer(python: Path, case: Case) -> tuple[dict[str, int], float] | str:
    """Result rows by kind and CPU seconds of its search, or why it has none."""
    question = {"model_path": case.peer_model, "total_gpus": GPUS, "system": "h200_sxm", "backend": case.peer_backend}
    question |= {"isl": case.prompt_tokens, "osl": case.output_tokens}
    told = ask(python, ["-c", PEER_SCRIPT], question)
    if isinstance(told, str):
        return told
    rows, cpu_s = told
    return (rows, cpu_s) if rows else "it reports no rows"


def ask_us(case: Case) -> tuple[int, int, float]:
    """Colocated and split candidates, all simulated, and CPU seconds."""
    setting = Setting(
        load_model_card(case.model),
        load_accelerator_card("MI355X"),
        {},
        Mode.SIMULATE,
        case.prompt_tokens,
        case.output_tokens,
    )
    question = plan.Question((EngineOption(Engine.SGLANG),), 8, NODES, GPUS, concurrencies=LOADS)
    started = time.process_time()
    predictor = Predictor(setting)
    answer = plan.answer(question, predictor)
    splits = split.split_candidates(question, predictor, HandoffBackend.MORI)
    return len(answer.candidates), len(splits), time.process_time() - started


def main() -> int:
    """Ask both; judge."""
    python = interpreter(PACKAGE)
    worst = 0
    ask_us(Case("Qwen3-32B-FP8", "", "", 1024, 2))  # loads the compiled simulator
    for case in CASES:
        colocated, splits, seconds = ask_us(case)
        ours = (colocated + splits) / seconds
        print(
            f"{case.model}, {GPUS} GPUs: ours {colocated} colocated + {splits} split candidates "
            f"in {seconds:.1f} CPU s, {ours:.0f}/s",
            flush=True,
        )
        found = python if isinstance(python, str) else ask_peer(python, case)
        if isinstance(found, str):
            print(f"  {PACKAGE}: skipped: {found}")
            continue
        rows, peer_s = found
        theirs = sum(rows.values()) / peer_s
        ok = ours >= FLOOR * theirs
        print(
            f"  {PACKAGE}: {' + '.join(f'{count} {name}' for name, count in rows.items())} rows in {peer_s:.1f} CPU s, "
            f"{theirs:.0f}/s; ratio {ours / theirs:.1f} (at least {FLOOR:g})",
            flush=True,
        )
        worst = max(worst, int(not ok))
    return worst


if __name__ == "__main__":
    sys.exit(main())
