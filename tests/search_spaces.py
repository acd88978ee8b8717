"""Small search spaces over the example anchors and over cards, for the tests of search and agent."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from simcore.anchors.schema import Anchor, anchor_from
from simcore.cards import load_accelerator_card, load_model_card
from simcore.cards.layout import Engine
from simcore.prediction.predictor import Mode, Setting
from simcore.prediction.shapes import EngineOption
from simcore.search.objectives import Slo
from simcore.search.space import Cluster, Space

EXAMPLES = Path(__file__).parents[1] / "examples" / "anchors"
CONCURRENCIES = (1, 8, 64)


@cache
def example_anchors() -> dict[str, Anchor]:
    return {path.stem: anchor_from(json.loads(path.read_text()), path.name) for path in sorted(EXAMPLES.glob("*.json"))}


def space(
    objective: str = "decodeThroughputPerGpu",
    *,
    model: str = "Qwen3-14B",
    engine: Engine = Engine.SGLANG,
    mode: Mode = Mode.SIMULATE,
    gpus: int = 8,
    concurrencies: tuple[int, ...] = CONCURRENCIES,
    slo: Slo | None = None,
    prompt_tokens: int = 512,
    output_tokens: int = 128,
    builds_fusions: bool = False,
) -> Space:
    """A node of MI355X; anchors only where `mode` is anchored."""
    anchors = example_anchors() if mode is Mode.ANCHORED else {}
    setting = Setting(
        load_model_card(model), load_accelerator_card("MI355X"), anchors, mode, prompt_tokens, output_tokens
    )
    cluster = Cluster(gpus_per_node=8, nodes_count=1, gpu_budget_count=gpus)
    return Space(
        setting,
        EngineOption(engine),
        cluster,
        concurrencies=concurrencies,
        objective=objective,
        slo=slo,
        builds_fusions=builds_fusions,
    )
