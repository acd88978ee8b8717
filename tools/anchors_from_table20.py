"""Writes the built-in anchors, and their copies in examples/, from the one-stage rows of the paper's Table 20.

`--check` compares instead.

The rows are closed-loop means of C clients with equal lengths, so they hold stalls that an anchor must not hold. SGLang
prefills first, so equal requests stay one wave: C prompts are prefilled in steps of at most BUDGET_TOKENS, then all
decode together, and end together. With B prefill steps the mean TTFT is (B + 1) / 2B of the wave's prefill time W, a
request's tokens after its first wait for the rest of W, and so

    W = TTFT * 2B / (B + 1)        decode step = TPOT - (W - TTFT) / (output tokens - 1)        prefill step = W / B

F and c1 are a relative least-squares fit over all prefill steps; c2 (attention) comes from the model card.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import nnls

from simcore.anchors.checks import check_anchor
from simcore.anchors.schema import SCHEMA_ID, Anchor, anchor_from
from simcore.cards.layout import Engine, Layout
from simcore.cards.library import load_accelerator_card, load_model_card
from simcore.stepcost.analytical import analytical

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDERS: Final = (ROOT / "simcore" / "data" / "anchors", ROOT / "examples" / "anchors")
ENGINE_VERSION: Final = "0.5.19"
IMAGE: Final = "lmsysorg/sglang-rocm:v0.5.19-rocm720-mi35x"
"""What the paper's App. K says all its SGLang runs used."""
TABLE: Final = "table20_pp1.csv"
BUDGET_TOKENS: Final = 8192
"""Prompt tokens of one prefill step. Not printed in the paper; SGLang's usual chunk, and of 8192 and 16384 the one
under which the rows of 16 and 64 clients give the same prefill step."""
WEIGHTS: Final = {"Llama-3.1-8B": "bf16", "Qwen3-14B-FP8": "fp8", "Qwen3.6-35B-A3B": "bf16"}
"""Weight format by row label: Table 20 names FP8 where it is used."""


def rows() -> list[dict[str, str]]:
    """The one-stage rows of Table 20 as printed."""
    text = resources.files("simcore.data").joinpath("paper", TABLE).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def single_wave(row: dict[str, str]) -> tuple[float, float, int]:
    """(decode step ms, prefill step ms, prompts per prefill step) behind one printed row."""
    clients, prompt, output = int(row["concurrency"]), int(row["isl_tokens"]), int(row["osl_tokens"])
    ttft, tpot = float(row["ttft_ms"]), float(row["tpot_ms"])
    together = min(clients, max(1, BUDGET_TOKENS // prompt))
    steps = math.ceil(clients / together)
    wave = ttft * 2 * steps / (steps + 1)
    return tpot - (wave - ttft) / (output - 1), wave / steps, together


def anchor_of(model: str, table: list[dict[str, str]]) -> Anchor:
    """The anchor of one model from its rows."""
    card = load_model_card(model)
    modelled = analytical(card, load_accelerator_card("MI355X"), layout=Layout(), engine=Engine.SGLANG)
    c2_ms = sum(part.prefill_s_per_token2 for part in modelled.terms(1)) * 1e3
    sweeps: dict[int, list[dict[str, Any]]] = {}
    alone: list[dict[str, Any]] = []
    packed: dict[tuple[int, int], list[float]] = {}
    prefills: list[tuple[int, int, float]] = []
    for row in table:
        prompt, clients = int(row["isl_tokens"]), int(row["concurrency"])
        decode, prefill, together = single_wave(row)
        sweeps.setdefault(prompt, []).append({"batch": clients, "stepMilliseconds": round(decode, 3)})
        prefills.append((prompt, together, prefill))
        if clients == 1:
            alone.append({"promptTokens": prompt, "milliseconds": prefill})
        elif together > 1:
            packed.setdefault((prompt, together), []).append(prefill)
    fixed, slope, residual = _fit(prefills, c2_ms)
    output = int(table[0]["osl_tokens"])
    probe = next(iter(packed.items()), None)
    return anchor_from(
        {
            "schema": SCHEMA_ID,
            "signature": {
                "acceleratorArchitecture": "gfx950",
                "accelerator": "MI355X",
                "engine": "SGLang",
                "engineVersion": ENGINE_VERSION,
                "image": IMAGE,
                "model": model,
                "weightsDtype": WEIGHTS[model],
                "graphCapture": {"mode": "full"},
                "tensorParallel": 1,
            },
            "decode": [
                {"promptTokens": prompt, "contextTokens": prompt + output // 2, "points": points}
                for prompt, points in sorted(sweeps.items())
            ],
            "prefill": {
                "points": alone,
                "fit": {
                    "fixedMilliseconds": round(fixed, 4),
                    "perTokenMicroseconds": round(slope * 1e3, 5),
                    "perTokenSquaredNanoseconds": round(c2_ms * 1e6, 6),
                    "residualPercent": round(100 * residual, 2),
                },
            },
            "packedPrefill": {
                "sequenceTokens": probe[0][0],
                "tokenBudget": BUDGET_TOKENS,
                "points": [{"sequences": probe[0][1], "milliseconds": round(sum(probe[1]) / len(probe[1]), 3)}],
            }
            if probe
            else None,
            "provenance": {
                "source": "paper",
                "realWeights": True,
                "prefixCachingOff": True,
                "maxConcurrency": max(int(row["concurrency"]) for row in table),
                "notes": [
                    "derived from the closed-loop means of paper Table 20 (PP 1), not from a harvest",
                    f"prefill waits of one wave are taken out; prefill steps of {BUDGET_TOKENS} tokens are assumed",
                    "the quadratic prefill term is the model card's; TTFT holds the host time, so F does too",
                    "engine version and image are those of App. K; backends and captured sizes are not printed",
                ],
                "residuals": {"prefill": round(residual, 4)},
            },
        },
        model,
    )


def _fit(prefills: list[tuple[int, int, float]], c2_ms: float) -> tuple[float, float, float]:
    """(F ms, c1 ms/token, largest relative residual) over (prompt tokens, prompts, step ms)."""
    prompt, count, step = (np.array(column, dtype=float) for column in zip(*prefills, strict=True))
    known = c2_ms * count * prompt**2
    columns = np.stack([np.ones_like(step), count * prompt], axis=1) / step[:, None]
    (fixed, slope), _ = nnls(columns, (step - known) / step)
    residual = np.abs((fixed + slope * count * prompt + known) / step - 1.0)
    return float(fixed), float(slope), float(residual.max())


def main() -> int:
    """Write or check the files; 1 when a file differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    check = parser.parse_args().check
    table, different = rows(), []
    for model in WEIGHTS:
        anchor = anchor_of(model, [row for row in table if row["model"] == model])
        name = f"{model.lower()}-sglang-mi355x-tp1.json"
        text = anchor.to_json()
        for path in (folder / name for folder in FOLDERS):
            if check:
                if not path.exists() or path.read_text(encoding="utf-8") != text:
                    different.append(str(path.relative_to(ROOT)))
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if check:
            continue
        for result in check_anchor(anchor):
            sys.stdout.write(f"{name}: {result.name}: {result.verdict.value}: {result.detail}\n")
    if different:
        sys.stderr.write("differ from the table: " + ", ".join(different) + "; run tools/anchors_from_table20.py\n")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
