"""Step pricing: shapes per second vectorised, one call in the simulator's path, against a literal loop in the same run.

Prints one line per figure and exits 1 when a floor is missed: 2 million shapes/s, 10 us per call.
"""

from __future__ import annotations

import sys
import timeit

import numpy as np

from simcore.cards.layout import Engine, Layout
from simcore.cards.library import load_accelerator_card, load_model_card
from simcore.stepcost.analytical import analytical
from simcore.stepcost.step import StepCost

SHAPES = 1_000_000
SHAPES_PER_S_FLOOR = 2_000_000
CALL_S_CEILING = 10e-6


def literal(cost: StepCost, rows: list[tuple[int, int, int, int, int]]) -> list[float]:
    """The formula of `StepTable`, shape by shape, from the terms."""
    parts = cost.terms(256)
    out = []
    for batch, context, window, new, square in rows:
        decode = sum(
            t.decode_base_s[batch]
            + t.decode_context_s_per_token[batch] * context
            + t.decode_window_s_per_token[batch] * window
            for t in parts
        )
        prefill = sum(t.prefill_fixed_s + t.prefill_s_per_token * new + t.prefill_s_per_token2 * square for t in parts)
        prefill = prefill if new else 0.0
        shared = min(decode, prefill, cost.mixed_shared_s)
        out.append(float(decode + prefill - shared))
    return out


def main() -> int:
    """Run and judge."""
    cost = analytical(
        load_model_card("gpt-oss-120b"), load_accelerator_card("MI355X"), layout=Layout(), engine=Engine.VLLM
    )
    random = np.random.default_rng(1)
    batch = random.integers(0, 257, SHAPES)
    context, window = batch * 4000, batch * 128
    new = random.integers(0, 8193, SHAPES) * random.integers(0, 2, SHAPES)
    square = new * new
    fields = (batch, context, window, new, square)
    cost.price_many(*(field[:8] for field in fields))
    vectorised = SHAPES / min(timeit.repeat(lambda: cost.price_many(*fields), number=1, repeat=5))
    rows = list(zip(*(field[:2000].tolist() for field in fields), strict=True))
    slow = literal(cost, rows)
    if not np.allclose(slow, cost.price_many(*(field[:2000] for field in fields)), rtol=1e-12):
        raise SystemExit("price_many differs from the literal loop")
    loop = len(rows) / min(timeit.repeat(lambda: literal(cost, rows), number=1, repeat=3))
    table = cost.table(256)
    arguments = (64, 256_000, 8192, 2048, 2048 * 2048)
    call = min(timeit.repeat(lambda: table.price_ps(*arguments), number=10_000, repeat=5)) / 10_000
    build = min(timeit.repeat(lambda: _fresh().table(256), number=1, repeat=5))
    sys.stdout.write(
        f"stepcost.shapes_per_s_vectorised {vectorised:,.0f} (literal {loop:,.0f}, floor {SHAPES_PER_S_FLOOR:,})\n"
        f"stepcost.price_call_us {call * 1e6:.2f} (ceiling {CALL_S_CEILING * 1e6:g})\n"
        f"stepcost.build_table_ms {build * 1e3:.2f}\n"
    )
    return int(vectorised < SHAPES_PER_S_FLOOR or call > CALL_S_CEILING)


def _fresh() -> StepCost:
    return analytical(
        load_model_card("gpt-oss-120b"), load_accelerator_card("MI355X"), layout=Layout(), engine=Engine.VLLM
    )


if __name__ == "__main__":
    raise SystemExit(main())
