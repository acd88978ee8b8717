"""From the rows of one layout to its step model: prefill F, c1, c2, context slope, host time, decode step per batch.

Every request's time is split by the work balance T = b P(n) + (m - 1) (s(b) + k b ctx): per cell the step follows from
the measured time once P and k are known, so only three numbers per layout are searched (host, c1, k), each held by a
prior from the cards. The cells' own steps keep the measured row as the base that laws only move.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from simcore.laws.width import weight_read
from simcore.prediction.steady import first_wave_factor
from simcore.stepcost.calibration import Calibration
from simcore.stepcost.features import LayoutFeatures
from simcore.validate.cells import Cell, Shape

Floats = NDArray[np.float64]
TTFT_SPREAD = 0.15
"""Relative spread of a mean TTFT between repeats: 2 % median, far more at few clients."""
HOST_TTFT_FRAC = 0.75
"""Prior share of a layout's smallest TTFT that is no prefill, in series whose lengths were drawn (0.6 to 0.9)."""
STEP_SPREAD = 0.06
"""Relative spread between the steps that different shapes give at the same batch."""
MAX_PREFILL_SHARE = 0.92
"""A cell's prefills take at most this share of its measured time; a prior that says more is wrong for the cell."""
MIN_BASE_FRAC = 0.2
"""At least this share of a step is not context reading."""
FALL_LIMIT = 0.97
"""A step does not fall as its batch grows, noise of 3 % apart."""
FAMILY_COUNT = 3.0
SCALE_LIMIT = 8.0
"""Prefill at most this many times slower than its prior."""
LADDER_STEP = 1.0
"""Doublings between the loads of a usual ladder."""
LEAST_SLOPED_FRAC = 0.7
"""Below the measured batches their slope is followed down to this share of the first step."""
LEAST_WORKED_FRAC = 0.3
"""What the cards take off below them leaves at least this share: launches, constants, experts read below the peak."""
LARGEST_POWER = 0.6
"""Steps grow at most as b^0.6 beyond the measured batches: the log-log slope at the largest batches of long sweeps."""
SAME_BATCH = 0.05
"""Cells within 5 % in batch are one point of the curve."""
TINY_WEIGHT = 1e-9
LEAST_S_PER_TOKEN = 1e-9
"""Keeps a prefill above 0 where rows show none."""
PASS_TOKENS = 8192.0
"""Prompt tokens of a prefill pass: the default budget on large GPUs. Assumed where a table is silent."""
CLIENTS_SCALE = 0.35
"""Log distance in clients at which a cell's say in the waits falls to 1/e, among cells of the asked shape."""
OTHER_SHAPE_CLIENTS_SCALE = 1.5
"""The same among cells of other shapes: there only the common offset from the simulated waits carries over."""
SHAPE_SCALE = 0.7
"""Log distance of lengths at which a cell's weight falls to 1/e."""


@dataclass(frozen=True)
class Prefill:
    """P(n) = F + c1 n + c2 n^2."""

    fixed_s: float
    s_per_token: float
    s_per_token2: float

    def seconds(self, prompt_tokens: float, fixed_share: float = 1.0) -> float:
        """One prompt that pays `fixed_share` of F, the rest being shared with other prompts or the decode step."""
        return fixed_share * self.fixed_s + self.s_per_token * prompt_tokens + self.s_per_token2 * prompt_tokens**2

    def ttft_s(self, prompt_tokens: float, waits: float) -> float:
        """A prompt's own pass and those of the others that it waits for."""
        return waits * self.seconds(prompt_tokens)


def full_pass(prompt_tokens: float) -> float:
    """Prompts (or part of one) that a pass within the engine's token budget holds."""
    return PASS_TOKENS / prompt_tokens


def fixed_share(features: LayoutFeatures, prompt_tokens: float, running: float, gaps: float) -> float:
    """Share of F that one prompt adds in a steady state.

    Prompts that arrive in one decode step share a pass, a prompt above the token budget needs several, and an engine
    that mixes prefill into decode steps pays only for weights the decode does not read.
    """
    most = full_pass(prompt_tokens)
    prompts = min(max(running / gaps, min(1.0, most)), most)
    return features.unread_frac(running) / prompts


@dataclass(frozen=True)
class FittedLayout:
    """The step model of one layout and the cells it was read from."""

    cells: tuple[Cell, ...]
    prefill: Prefill
    context_s_per_byte: float
    """Time per KV byte read, so that windows and width follow the card."""
    host_s: float
    features: LayoutFeatures | None
    step_s: Floats
    """(cells,) single-wave decode step of each cell at its running batch and its context."""
    cell_waits: Floats
    """(cells,) prefills in a mean TTFT by the simulator (or, before it ran, by `expected_waits`)."""
    notes: tuple[str, ...] = ()
    _curves: dict[Shape, tuple[Floats, Floats]] = field(default_factory=dict, repr=False, compare=False)

    def context_s(self, batch: float, context_tokens: float) -> float:
        """Seconds of a decode step spent on reading context."""
        if self.features is None:
            return 0.0
        return self.context_s_per_byte * batch * self.features.read_context_bytes(context_tokens)

    @cached_property
    def base_s(self) -> Floats:
        """(cells,) decode steps without their context reading."""
        reading = np.array([self.context_s(cell.running, cell.context_tokens) for cell in self.cells])
        return np.asarray(np.maximum(self.step_s - reading, MIN_BASE_FRAC * self.step_s))

    def step_at(self, batch: float, context_tokens: float, shape: Shape) -> float:
        """Decode step of `batch` requests: the cells' steps, the most alike shapes counting most, log-log in batch."""
        batches, values = self._curve(shape)
        beyond_s = 0.0
        if self.features is not None:
            nearest = min(max(batch, float(batches[0])), float(batches[-1]))
            beyond_s = abs(batch_work_s(self.features, batch) - batch_work_s(self.features, nearest))
        return _interpolate(batch, batches, values, beyond_s) + self.context_s(batch, context_tokens)

    def floor(self, shape: Shape) -> tuple[float, float]:
        """(step without context [s], batch) at the smallest batch measured, the most alike shapes counting most."""
        batches, values = self._curve(shape)
        return float(values[0]), float(batches[0])

    def gap_doublings(self, batch: float) -> float:
        """Doublings from the nearest measured batch, the half of a step that a ladder of doublings leaves taken off."""
        nearest = min(abs(math.log2(batch / cell.running)) for cell in self.cells)
        return max(nearest - LADDER_STEP / 2.0, 0.0)

    @property
    def is_timed(self) -> bool:
        """Some cell tells a prefill: a TTFT that is no queue."""
        return any(cell.ttft_s is not None and not cell.is_waiting for cell in self.cells)

    def waits_at(self, clients: float, shape: Shape, *, is_drawn: bool, simulated_count: float) -> float:
        """Prefills in a mean TTFT at `clients`: the simulated number, moved as the measured cells lie off theirs."""
        timed = [
            (cell, waits)
            for cell, waits in zip(self.cells, self.cell_waits, strict=True)
            if cell.ttft_s is not None and not cell.is_waiting
        ]
        mine = [(cell, waits) for cell, waits in timed if cell.shape == shape]
        scale = CLIENTS_SCALE if mine else OTHER_SHAPE_CLIENTS_SCALE
        mine = mine or [(cell, waits) for cell, waits in timed if cell.is_drawn == is_drawn]
        if not mine:
            return simulated_count
        logs = []
        weights = []
        for cell, waits in mine:
            waited_s = max((cell.ttft_s or 0.0) - self.host_s, 0.0)
            logs.append(math.log(max(waited_s / self.prefill.seconds(cell.prompt_tokens), 0.3) / waits))
            weights.append(math.exp(-abs(math.log(cell.clients / clients)) / scale))
        return simulated_count * math.exp(float(np.average(logs, weights=np.asarray(weights) + 1e-12)))

    def _curve(self, shape: Shape) -> tuple[Floats, Floats]:
        """(batches, steps without context reading) seen from a shape, kept because every row of a shape asks for it."""
        if shape not in self._curves:
            self._curves[shape] = self._weighted_curve(shape)
        return self._curves[shape]

    def _weighted_curve(self, shape: Shape) -> tuple[Floats, Floats]:
        running = np.array([cell.running for cell in self.cells])
        weights = np.array([shape_weight(cell.shape, shape) for cell in self.cells])
        base = np.log(self.base_s)
        batches = np.unique(np.round(running, 1))
        values, mass = np.empty_like(batches), np.empty_like(batches)
        for index, batch in enumerate(batches):
            near = weights * (np.abs(np.log(running / batch)) < SAME_BATCH) + TINY_WEIGHT
            values[index], mass[index] = np.average(base, weights=near), near.sum()
        return batches, np.exp(rising(values, mass))


def rising(values: Floats, weights: Floats) -> Floats:
    """The non-decreasing sequence nearest to `values` in weighted squares (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        block = (float(value), float(weight), 1)
        while blocks and blocks[-1][0] > block[0]:
            last = blocks.pop()
            mass = last[1] + block[1]
            block = ((last[0] * last[1] + block[0] * block[1]) / mass, mass, last[2] + block[2])
        blocks.append(block)
    return np.concatenate([np.full(count, value) for value, _, count in blocks])


def shape_weight(one: Shape, other: Shape) -> float:
    """1 for the same lengths, falling with their log distance; prompt and output count alike."""
    distance = abs(math.log(one[0] / other[0])) + abs(math.log(one[1] / other[1]))
    return math.exp(-distance / SHAPE_SCALE)


def expected_waits(clients: float, *, is_drawn: bool) -> float:
    """Prefills in a mean TTFT by the law of a run of `ROUNDS` requests per client.

    Drawn lengths spread the clients out after the first wave: own prefill, a part of the running step, and the first
    wave's share. Equal lengths keep clumps together: clients up to the square root of four times their number wait for
    each other's prefills.
    """
    if is_drawn:
        return 1.3 + first_wave_factor(clients)
    return min(clients, 2.0 * math.sqrt(clients)) if clients > 1 else 1.0


def batch_work_s(features: LayoutFeatures, batch: float) -> float:
    """What the cards say a step's matrices take at `batch`, at datasheet rates: experts touched and FLOP [s]."""
    read_s = features.expert_bytes * features.expert_coverage_frac(batch) / features.hbm_bytes_per_s
    return read_s + batch * features.token_flop / features.peak_flop_per_s


def _interpolate(batch: float, batches: Floats, values: Floats, beyond_s: float) -> float:
    """Log-log inside the points. Above them, the last power law or what the cards add (`beyond_s`), if more.

    Below them, the first slope, or what the cards take off, if more.
    """
    if batch > batches[-1]:
        power = 0.0
        if len(batches) > 1:
            first = max(len(batches) - 3, 0)
            power = math.log(values[-1] / values[first]) / math.log(batches[-1] / batches[first])
        grown_s = values[-1] * (batch / batches[-1]) ** min(max(power, 0.0), LARGEST_POWER)
        return float(max(grown_s, values[-1] + beyond_s))
    if batch < batches[0]:
        slope = max((values[1] - values[0]) / (batches[1] - batches[0]), 0.0) if len(batches) > 1 else 0.0
        sloped_s = max(values[0] - slope * (batches[0] - batch), LEAST_SLOPED_FRAC * values[0])
        return float(min(sloped_s, max(values[0] - beyond_s, LEAST_WORKED_FRAC * values[0])))
    if len(batches) == 1:
        return float(values[0])
    return float(np.exp(np.interp(math.log(batch), np.log(batches), np.log(values))))


def fit_layout(
    cells: tuple[Cell, ...],
    features: LayoutFeatures | None,
    calibration: Calibration,
    cell_waits: Floats | None = None,
) -> FittedLayout:
    """The step model behind `cells` (at least one). Without cards prefill is read off TTFT, context costs nothing.

    `cell_waits` (cells,) are the simulated prefills in each cell's TTFT; without them the law's.
    """
    if cell_waits is None:
        cell_waits = np.array([expected_waits(cell.clients, is_drawn=cell.is_drawn) for cell in cells])
    if features is None:
        return _fit_without_card(cells, cell_waits)
    prior = prior_prefill(features, calibration)
    kv_prior = 1.0 / (calibration.kv_bandwidth_frac * features.hbm_bytes_per_s)
    free = [cell for cell in cells if not cell.is_waiting]
    timed = [cell for cell in free if cell.ttft_s is not None]
    groups, runs = _same_batch(free), _same_shape(free)
    table = _Table.of(cells, features)
    waits_of = dict(zip(cells, cell_waits, strict=True))

    def residuals(logs: Floats) -> Floats:
        host_s, scale, kv_scale = (float(value) for value in np.exp(logs))
        prefill = scaled(prior, scale)
        steps = table.base_steps(prefill, features, kv_scale * kv_prior, host_s)
        by_cell = dict(zip(cells, steps, strict=True))
        ttft = [_ttft_residual(cell, host_s, prefill, waits_of[cell]) for cell in timed]
        shared = [
            (by_cell[cell] - _mean(group, by_cell)) / cell.tpot_s / STEP_SPREAD for group in groups for cell in group
        ]
        falls = [
            max(math.log(FALL_LIMIT * by_cell[low] / by_cell[high]), 0.0) / STEP_SPREAD
            for run in runs
            for low, high in itertools.pairwise(run)
        ]
        held = [
            (logs[0] - start[0]) / calibration.host_prior_spread,
            logs[1] / calibration.prefill_prior_spread,
            logs[2] / calibration.kv_prior_spread,
        ]
        return np.array([*_weighed(ttft), *_weighed(shared), *falls, *held])

    smallest = min((cell.ttft_s or 0.0 for cell in timed), default=10.0 * calibration.host_s)
    start = np.log([min(HOST_TTFT_FRAC * smallest, calibration.host_s), 1.0, 1.0])
    most = min((_largest_scale(cell, prior, features) for cell in free), default=SCALE_LIMIT)
    bounds = (np.log([1e-3 * smallest, 0.1, 0.1]), np.log([smallest, max(most, 0.11), 6.0]))
    start[1] = min(start[1], bounds[1][1] - 1e-6)
    found = least_squares(residuals, start, bounds=bounds, loss="soft_l1", max_nfev=40)
    host_s, scale, kv_scale = (float(value) for value in np.exp(found.x))
    prefill, per_byte = scaled(prior, scale), kv_scale * kv_prior
    reading = np.array([_reading(cell, features, per_byte) for cell in cells])
    steps = table.base_steps(prefill, features, per_byte, host_s) + reading
    return FittedLayout(cells, prefill, per_byte, host_s, features, steps, cell_waits)


def _largest_scale(cell: Cell, prior: Prefill, features: LayoutFeatures) -> float:
    """What the cell allows: its TTFT holds a prefill, and its request time holds one prefill of every client."""
    work_s = prior.seconds(cell.prompt_tokens) - prior.fixed_s
    share = fixed_share(features, cell.prompt_tokens, cell.running, max(cell.output_tokens - 1.0, 1.0))
    room_s = MAX_PREFILL_SHARE * cell.request_s / cell.running - share * prior.fixed_s
    if cell.ttft_s is not None:
        room_s = min(room_s, cell.ttft_s - prior.fixed_s)
    return min(max(room_s, 0.0) / work_s, SCALE_LIMIT)


def _ttft_residual(cell: Cell, host_s: float, prefill: Prefill, waits: float) -> float:
    """How far the model's TTFT is off. With equal lengths the waits are only known to lie between 1 and all clients."""
    ttft_s = cell.ttft_s or 0.0
    if cell.is_drawn:
        model_s = host_s + prefill.ttft_s(cell.prompt_tokens, waits)
        return math.log(model_s / ttft_s) / TTFT_SPREAD
    least = host_s + prefill.seconds(cell.prompt_tokens)
    most = host_s + prefill.ttft_s(cell.prompt_tokens, float(cell.clients))
    return (min(math.log(most / ttft_s), 0.0) + max(math.log(least / ttft_s), 0.0)) / TTFT_SPREAD


def _weighed(residuals: list[float]) -> list[float]:
    """A family of residuals that err together counts as `FAMILY_COUNT` measurements, however many rows there are."""
    factor = math.sqrt(min(1.0, FAMILY_COUNT / max(len(residuals), 1)))
    return [factor * residual for residual in residuals]


def _mean(group: list[Cell], by_cell: dict[Cell, float]) -> float:
    weights = sum(cell.output_tokens for cell in group)
    return sum(cell.output_tokens * by_cell[cell] for cell in group) / weights


@dataclass(frozen=True)
class _Table:
    """Cells as arrays, for the work balance."""

    running: Floats
    prompts: Floats
    shares: Floats
    gaps: Floats
    ttft_s: Floats
    """0 where it is not measured."""
    is_waiting: NDArray[np.bool_]
    decode_s: Floats
    contexts: tuple[float, ...]

    @classmethod
    def of(cls, cells: tuple[Cell, ...], features: LayoutFeatures) -> _Table:
        gaps = np.array([max(cell.output_tokens - 1.0, 1.0) for cell in cells])
        return cls(
            np.array([cell.running for cell in cells]),
            np.array([cell.prompt_tokens for cell in cells]),
            np.array(
                [
                    fixed_share(features, cell.prompt_tokens, cell.running, gap)
                    for cell, gap in zip(cells, gaps, strict=True)
                ]
            ),
            gaps,
            np.array([cell.ttft_s or 0.0 for cell in cells]),
            np.array([cell.is_waiting for cell in cells]),
            gaps * np.array([cell.tpot_s for cell in cells]),
            tuple(cell.context_tokens for cell in cells),
        )

    def base_steps(self, prefill: Prefill, features: LayoutFeatures, per_byte: float, host_s: float) -> Floats:
        """(cells,) decode step without its context reading, by the work balance [s]; the host's part is no work."""
        tokens_s = prefill.s_per_token * self.prompts + prefill.s_per_token2 * self.prompts**2
        one_s = prefill.fixed_s * self.shares + tokens_s
        served_s = np.where(self.is_waiting, one_s, np.maximum(self.ttft_s - host_s, 0.0))  # a queue is not work
        request_s = self.decode_s + served_s
        step_s = (request_s - np.minimum(self.running * one_s, MAX_PREFILL_SHARE * request_s)) / self.gaps
        bytes_read = np.array([features.read_context_bytes(tokens) for tokens in self.contexts])
        return np.asarray(np.maximum(step_s - per_byte * self.running * bytes_read, MIN_BASE_FRAC * step_s))


def scaled(prior: Prefill, scale: float) -> Prefill:
    """The card's prefill with its per-token work `scale` times as long; F is weight reading and stays."""
    return replace(prior, s_per_token=prior.s_per_token * scale, s_per_token2=prior.s_per_token2 * scale)


def prior_prefill(features: LayoutFeatures, calibration: Calibration) -> Prefill:
    """Prefill from the cards alone: F reads all weights once, c1 and c2 are FLOP at the learnt share of the peak."""
    fixed_s = weight_read(
        weight_bytes=features.weight_bytes,
        effective_bytes_per_s=calibration.prefill_weight_bandwidth_frac * features.hbm_bytes_per_s,
    )
    share = calibration.moe_prefill_flop_frac if features.experts_count else calibration.dense_prefill_flop_frac
    rate = share * features.peak_flop_per_s
    index_rate = calibration.index_flop_frac * features.peak_flop_per_s
    squared_s = features.attention_flop_per_token2 / 2.0 / rate + features.index_flop_per_token2 / 2.0 / index_rate
    return Prefill(float(fixed_s), features.token_flop / rate, squared_s)


def _reading(cell: Cell, features: LayoutFeatures, per_byte: float) -> float:
    return per_byte * cell.running * features.read_context_bytes(cell.context_tokens)


def _same_batch(cells: list[Cell]) -> list[list[Cell]]:
    groups: dict[int, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.clients, []).append(cell)
    return [group for group in groups.values() if len(group) > 1]


def _same_shape(cells: list[Cell]) -> list[list[Cell]]:
    groups: dict[Shape, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.shape, []).append(cell)
    return [group for group in groups.values() if len(group) > 1]


def _fit_without_card(cells: tuple[Cell, ...], cell_waits: Floats) -> FittedLayout:
    """TTFT = host + waits times a prefill in proportion to the prompt, steps as measured: all that rows alone say."""
    timed = [
        (cell, waits)
        for cell, waits in zip(cells, cell_waits, strict=True)
        if cell.ttft_s is not None and not cell.is_waiting
    ]
    host_s, per_token = 0.0, 0.0
    if timed:
        ttft_s = np.array([cell.ttft_s for cell, _ in timed], dtype=np.float64)
        prefilled = np.array([waits * cell.prompt_tokens for cell, waits in timed])
        (host_s, per_token), _ = nnls(np.stack([1.0 / ttft_s, prefilled / ttft_s], axis=1), np.ones(len(timed)))
    prefill = Prefill(0.0, max(float(per_token), LEAST_S_PER_TOKEN), 0.0)
    steps = np.array([_balanced_s(cell, prefill, float(host_s)) for cell in cells])
    return FittedLayout(cells, prefill, 0.0, float(host_s), None, steps, cell_waits, ("no model card",))


def _balanced_s(cell: Cell, prefill: Prefill, host_s: float) -> float:
    """Decode step of a cell by the work balance, its context reading left in [s]."""
    gaps, one_s = max(cell.output_tokens - 1.0, 1.0), prefill.seconds(cell.prompt_tokens)
    served_s = one_s if cell.is_waiting else max((cell.ttft_s or 0.0) - host_s, 0.0)
    work_s = gaps * cell.tpot_s + served_s
    return (work_s - min(cell.running * one_s, MAX_PREFILL_SHARE * work_s)) / gaps
