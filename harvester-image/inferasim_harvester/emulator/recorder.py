"""The expert-distribution recorder of SGLang, imitated: every token of every step draws its experts evenly."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

EXTEND, DECODE = 1, 2
"""SGLang's numbers of the forward modes."""


@dataclass
class Recorder:
    """Records between start and stop; `dump` writes one file into `folder`, as JSON: the emulator has no torch."""

    folder: Path
    experts_count: int = 16
    layers_count: int = 2
    experts_per_token: int = 2
    seed: int = 0
    is_on: bool = False
    records: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stream = np.random.default_rng(self.seed)

    def step(self, number: int, prompt_tokens: int, decode_tokens: int) -> None:
        """One step of the engine, prefill or decode."""
        tokens = prompt_tokens or decode_tokens
        if not self.is_on or not tokens:
            return
        keys = self._stream.random((self.layers_count, tokens, self.experts_count))
        self.records.append(
            {
                "forward_pass_id": number,
                "rank": 0,
                "forward_mode": EXTEND if prompt_tokens else DECODE,
                "topk_ids_of_layer": np.argsort(keys, axis=2)[:, :, : self.experts_per_token].tolist(),
            }
        )

    def dump(self) -> None:
        """What was recorded, under the name that SGLang gives it."""
        logical = [list(range(self.experts_count))] * self.layers_count
        text = json.dumps({"records": self.records, "last_physical_to_logical_map": logical})
        (self.folder / "expert_distribution_recorder_0.pt").write_text(text)
        self.records = []
