"""Cells: the anchor rows of one layout, made comparable – served lengths, running requests, saturation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from simcore.validate.corpus import CorpusRow

DRAWN_RATIO = 0.8
"""Lengths drawn uniformly from [0.8 L, L]: what the clients of the public tables that draw lengths at all are set to.
Assumed only where a table is silent and Little's law says that lengths were drawn."""
DRAWN_DRAIN = 1.025
"""Median drain of runs with drawn lengths and ten requests per client (as below)."""
DRAIN_SIGN_RATIO = 1.012
"""Little's law on a run of equal lengths closes within 0.5 % (its waves end together); a run of drawn lengths loses 2
to 4 % while the last requests drain. Between them lies the threshold. Source: the paper's Table 20 (1.000 on 54 rows)
against runs stated as drawn at 0.8 (median 1.026)."""
WAIT_JUMP_FACTOR = 1.8
"""TTFT grows at most in proportion to the clients while requests run at once; beyond this multiple of that growth
they queue for a place."""
WAIT_SHARE_FRAC = 0.10
"""Queueing for a place also makes TTFT at least this share of the request's time."""
PREFILL_WAIT_FACTOR = 2.0
"""Waiting longer than twice the prefills of all clients (four times the mean wait for them) is not for prefills."""
POOL_DOUBT_FRAC = 0.6
"""The engine's pool is at least this share of what the memory model gives (activations and graphs take the rest)."""
CAPACITY_WAIT_FRAC = 0.3
"""Where the memory model says that the clients do not fit, waiting of this share of the decode time confirms it."""
TTFT_SHARE_LIMIT = 0.15
"""Where TTFT is a larger part of the request, Little's law depends on the mean length, which is what is asked."""
Shape = tuple[int, int]


@dataclass(frozen=True)
class Lengths:
    """How the client of one shape drew lengths."""

    mean_factor: float
    """Served mean over nominal length."""
    is_drawn: bool
    drain_factor: float
    """Clients times tokens over time, over the measured throughput: what ramp and drain of a finite run cost."""

    @property
    def range_ratio(self) -> float:
        """r of lengths drawn uniformly from [r L, L]."""
        return min(2.0 * self.mean_factor - 1.0, 1.0)


@dataclass(frozen=True)
class Cell:
    """One (prompt, output, clients) point of a layout; several rows of a cell are their median."""

    shape: Shape
    clients: int
    prompt_tokens: float
    output_tokens: float
    ttft_s: float | None
    tpot_s: float
    is_drawn: bool
    running: float
    """Requests that decode at once."""
    is_waiting: bool
    """TTFT is more than prefills: the row tells neither a prefill nor the step at `clients`."""
    is_outheld: bool = False
    """Another cell runs as many requests and tokens without waiting: this one does not wait for a place."""

    @property
    def is_saturated(self) -> bool:
        """Clients wait for a place in the batch: the row tells the capacity."""
        return self.is_waiting and not self.is_outheld

    @property
    def held_tokens(self) -> float:
        """KV tokens of all clients at once."""
        return self.clients * self.context_tokens

    @property
    def request_s(self) -> float:
        """Mean end-to-end time of a request."""
        return (self.ttft_s or 0.0) + (self.output_tokens - 1.0) * self.tpot_s

    @property
    def context_tokens(self) -> float:
        """Mean context of a decoding request."""
        return self.prompt_tokens + self.output_tokens / 2.0


def lengths_by_shape(rows: Sequence[CorpusRow]) -> dict[Shape, Lengths]:
    """What the rows of one tool and layout say about the lengths of each of their shapes."""
    found: dict[Shape, Lengths] = {}
    for shape in dict.fromkeys((row.prompt_tokens, row.output_tokens) for row in rows):
        mine = [row for row in rows if (row.prompt_tokens, row.output_tokens) == shape]
        stated = [row.length_range_ratio for row in mine if row.length_range_ratio is not None]
        ratio = statistics.median(stated) if stated else _inferred_ratio(mine)
        factor = (1.0 + ratio) / 2.0
        drains = [drain for row in mine if (drain := _drain(row, factor)) is not None]
        drain = statistics.median(drains) if drains else 1.0
        found[shape] = Lengths(factor, ratio < 1.0, min(max(drain, 0.95), 1.15))
    return found


def _is_binary(shape: Shape) -> bool:
    return all(length & (length - 1) == 0 for length in shape)


def _inferred_ratio(rows: Sequence[CorpusRow]) -> float:
    """Whether lengths were drawn, from how Little's law closes on rows whose TTFT is a small part of the request."""
    signs = [
        drain
        for row in rows
        if row.ttft_s is not None
        and row.tpot_s is not None
        and row.ttft_s < TTFT_SHARE_LIMIT * row.output_tokens * row.tpot_s
        and (drain := _drain(row, 1.0)) is not None
    ]
    return DRAWN_RATIO if signs and statistics.median(signs) > DRAIN_SIGN_RATIO else 1.0


def lengths_for(shape: Shape, known: dict[Shape, Lengths], stated_ratio: float | None) -> Lengths:
    """Lengths of a shape that may not be among the `known` ones: stated, else as the most alike shape of the series."""
    if shape in known:
        return known[shape]
    alike = [known[other] for other in known if other[0] == shape[0] or other[1] == shape[1]]
    if not alike and stated_ratio is None and not any(_is_binary(other) == _is_binary(shape) for other in known):
        # Another client: the public ones that ask for powers of two draw lengths, those that ask for round decimals do
        # not. Assumed; the prediction is flagged.
        return Lengths((1.0 + DRAWN_RATIO) / 2.0, True, DRAWN_DRAIN) if _is_binary(shape) else Lengths(1.0, False, 1.0)
    alike = alike or list(known.values())
    if stated_ratio is not None:
        drains = [lengths.drain_factor for lengths in alike if lengths.is_drawn == (stated_ratio < 1.0)]
        return Lengths((1.0 + stated_ratio) / 2.0, stated_ratio < 1.0, statistics.median(drains) if drains else 1.0)
    drawn = [lengths for lengths in alike if lengths.is_drawn]
    chosen = drawn if 2 * len(drawn) > len(alike) else [lengths for lengths in alike if not lengths.is_drawn]
    if not chosen:
        return Lengths(1.0, False, 1.0)
    return Lengths(
        statistics.median(lengths.mean_factor for lengths in chosen),
        chosen[0].is_drawn,
        statistics.median(lengths.drain_factor for lengths in chosen),
    )


def _drain(row: CorpusRow, mean_factor: float) -> float | None:
    """Clients times served tokens over the request's time, over the measured throughput (Little's law)."""
    if row.ttft_s is None or row.tpot_s is None or row.throughput_tokens_per_s is None or row.output_tokens < 2:
        return None
    tokens = row.output_tokens * mean_factor
    return row.concurrency * tokens / (row.ttft_s + (tokens - 1) * row.tpot_s) / row.throughput_tokens_per_s


def cells_of(
    rows: Iterable[CorpusRow],
    lengths: dict[Shape, Lengths],
    pool_tokens: float = math.inf,
    prefill_s: Callable[[float], float] | None = None,
) -> tuple[Cell, ...]:
    """Median cells of one layout's rows, by shape then clients. Rows without a TPOT are left out.

    `pool_tokens` is the KV capacity and `prefill_s` the prefill time by prompt that the cards give the layout.
    """
    groups: dict[tuple[Shape, int], list[CorpusRow]] = {}
    for row in rows:
        if row.tpot_s is not None:
            groups.setdefault(((row.prompt_tokens, row.output_tokens), row.concurrency), []).append(row)
    cells: list[Cell] = []
    for shape in sorted({shape for shape, _ in groups}):
        before: Cell | None = None
        for clients in sorted(count for other, count in groups if other == shape):
            before = _cell(shape, clients, groups[shape, clients], lengths[shape], (pool_tokens, prefill_s), before)
            cells.append(before)
    found = [replace(cell, is_outheld=_is_outheld(cell, cells)) for cell in cells]
    held = max((cell.running * cell.context_tokens for cell in found if cell.is_saturated), default=math.inf)
    return tuple(_waiting(cell) if cell.held_tokens > held else cell for cell in found)


def _is_outheld(cell: Cell, cells: Sequence[Cell]) -> bool:
    return any(
        not other.is_waiting and other.clients >= cell.clients and other.held_tokens >= cell.held_tokens
        for other in cells
    )


def _cell(
    shape: Shape,
    clients: int,
    rows: list[CorpusRow],
    lengths: Lengths,
    limits: tuple[float, Callable[[float], float] | None],
    before: Cell | None,
) -> Cell:
    ttfts = [row.ttft_s for row in rows if row.ttft_s is not None]
    ttft_s = statistics.median(ttfts) if ttfts else None
    tpot_s = statistics.median(row.tpot_s for row in rows if row.tpot_s is not None)
    output_tokens = max(shape[1] * lengths.mean_factor, 1.0)
    decode_s = (output_tokens - 1.0) * tpot_s
    held_tokens = clients * (shape[0] * lengths.mean_factor + output_tokens / 2.0)
    pool_tokens, prefill_s = limits
    waiting = False
    if ttft_s is not None and ttft_s > CAPACITY_WAIT_FRAC * decode_s:
        waiting = held_tokens > POOL_DOUBT_FRAC * pool_tokens
        if prefill_s is not None:
            waiting |= ttft_s > PREFILL_WAIT_FACTOR * clients * prefill_s(shape[0] * lengths.mean_factor)
    if before is not None and ttft_s is not None and before.ttft_s is not None:
        grown_s = before.ttft_s * clients / before.clients
        jumps = ttft_s > WAIT_JUMP_FACTOR * grown_s and ttft_s > WAIT_SHARE_FRAC * decode_s
        waiting = waiting or before.is_waiting or (jumps and tpot_s < before.tpot_s * clients / before.clients)
    prompt_tokens = shape[0] * lengths.mean_factor
    cell = Cell(
        shape, clients, prompt_tokens, output_tokens, ttft_s, tpot_s, lengths.is_drawn, float(clients), is_waiting=False
    )
    return _waiting(cell) if waiting else cell


def _waiting(cell: Cell) -> Cell:
    """The cell as one whose clients wait for a place: Little's law says how many of them run."""
    decode_s = (cell.output_tokens - 1.0) * cell.tpot_s
    return replace(cell, running=cell.clients * decode_s / cell.request_s, is_waiting=True)
