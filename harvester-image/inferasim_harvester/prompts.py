"""New prompts for every repeat of every point: seeded, all different from their first block on."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

FIRST_TOKEN: Final = 1000
"""Below lie special tokens and single bytes in the vocabularies of today's checkpoints."""
DEFAULT_VOCABULARY: Final = 30_000
WORDS: Final = (
    "river", "stone", "market", "window", "paper", "engine", "garden", "winter",
    "letter", "harbor", "silver", "copper", "doctor", "bridge", "forest", "signal",
    "planet", "ticket", "camera", "violin", "pepper", "saddle", "button", "candle",
    "ladder", "mirror", "anchor", "basket", "rocket", "tunnel", "carpet", "island",
    "jacket", "kettle", "lemon", "meadow", "needle", "orange", "pencil", "quarry",
    "ribbon", "sailor", "temple", "valley", "walnut", "yellow", "zephyr", "bottle",
)  # fmt: skip
"""Plain words for engines that take text only."""


class Prompts:
    """A source of prompts for one harvest; the same spec gives the same prompts."""

    def __init__(self, digest: str, vocabulary: int | None = None) -> None:
        self.root = int.from_bytes(hashlib.sha256(digest.encode()).digest()[:8], "big")
        high = vocabulary or DEFAULT_VOCABULARY
        # A tiny vocabulary (tests, toys) has no room for the reserve.
        self.low, self.high = (FIRST_TOKEN, high) if high > 2 * FIRST_TOKEN else (high // 10, high)

    def token_ids(self, label: str, count: int, length: int) -> list[list[int]]:
        """`count` prompts of exactly `length` token ids. `label` names point and repeat."""
        return self._stream(label).integers(self.low, self.high, size=(count, length)).tolist()  # type: ignore[no-any-return]

    def texts(self, label: str, count: int, words: int) -> list[str]:
        """`count` texts of exactly `words` words."""
        picks = self._stream(label).integers(0, len(WORDS), size=(count, words))
        return [" ".join(WORDS[index] for index in row) for row in picks]

    def _stream(self, label: str) -> np.random.Generator:
        key = int.from_bytes(hashlib.sha256(label.encode()).digest()[:8], "big")
        return np.random.default_rng(np.random.SeedSequence([self.root, key]))
