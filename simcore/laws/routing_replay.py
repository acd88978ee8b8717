"""Replay of a recorded router on any EP layout: I_n and I_d per EP, phase and tokens, with EPLB replicas or without.

Paper App. B.3. The recording's file format is in `docs/formats/expert-routing.md`; `routing_files` reads it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from simcore.errors import DomainError, InputError
from simcore.laws.domain import require, require_at_least
from simcore.laws.moe import split_experts
from simcore.laws.registry import Quantity


class Phase(StrEnum):
    """Which tokens of a recording a step is made of."""

    DECODE = "decode"
    PREFILL = "prefill"


@dataclass(frozen=True, eq=False)
class RoutingRecording:
    """The router's choice of every token in every MoE layer, in the order the engine ran them."""

    experts_count: int
    choices: NDArray[np.int32]
    """(tokens, layers, top-k) expert ids."""
    step: NDArray[np.int64]
    """(tokens,) forward pass of each token; decode tokens of one pass belong to different requests."""
    is_decode: NDArray[np.bool_]
    """(tokens,)"""
    source: str = ""

    def __post_init__(self) -> None:
        choices = self.choices
        if choices.ndim != 3 or 0 in choices.shape:
            raise InputError("routing.choices", choices.shape, "be (tokens, layers, top-k), none of them 0")
        if self.step.shape != choices.shape[:1] or self.is_decode.shape != choices.shape[:1]:
            raise InputError("routing.step", self.step.shape, "hold one entry per token, as `is_decode`")
        low, high = int(choices.min()), int(choices.max())
        if low < 0 or high >= self.experts_count:
            hint = "record with the fusion of shared experts off"
            raise InputError("routing.choices", (low, high), f"be expert ids from 0 to {self.experts_count - 1}", hint)
        ordered = np.sort(choices, axis=2)
        if np.any(ordered[:, :, 1:] == ordered[:, :, :-1]):
            raise InputError("routing.choices", "a token with one expert twice", "choose top-k different experts")

    @property
    def layers_count(self) -> int:
        return int(self.choices.shape[1])


@dataclass(frozen=True, order=True)
class ExpertLoad:
    """One row of a replay's table: busiest rank over mean."""

    expert_parallel: int
    phase: Phase
    step_tokens: int
    rows_factor: float
    """I_n, routed tokens."""
    experts_factor: float
    """I_d, distinct experts (slots where experts are replicated)."""
    samples_count: int
    """Steps replayed, times layers."""
    replicas_count: int = 0


def uniform_recording(
    *,
    experts_count: int,
    experts_per_token: int,
    layers_count: int,
    steps_count: int,
    step_tokens: int,
    seed: np.random.SeedSequence,
) -> RoutingRecording:
    """A recording of decode steps by a uniform router: each token draws top-k experts without replacement."""
    require(1 <= experts_per_token <= experts_count, f"`experts_per_token` must be from 1 to {experts_count}")
    require(min(layers_count, steps_count, step_tokens) >= 1, "layers, steps and tokens must be at least 1")
    tokens = steps_count * step_tokens
    keys = np.random.Generator(np.random.PCG64(seed)).random((tokens, layers_count, experts_count), dtype=np.float32)
    choices = np.argpartition(keys, experts_per_token - 1, axis=2)[:, :, :experts_per_token].astype(np.int32)
    step = np.repeat(np.arange(steps_count, dtype=np.int64), step_tokens)
    return RoutingRecording(experts_count, choices, step, np.ones(tokens, dtype=np.bool_), "uniform router, sampled")


def place_experts(load_tokens: NDArray[np.float64], *, expert_parallel: int, replicas_count: int) -> list[list[int]]:
    """Greedy EPLB placement of one layer: rank of each copy of each expert.

    `load_tokens` (experts,) is the long-run load. Without replicas experts stay in contiguous blocks, as engines place
    them. With R, the expert with the highest load per copy gets the next copy, R times; then copies go, heaviest
    first, to the least loaded rank that has room. Raises DomainError unless ranks divide E + R evenly.
    Source: paper App. B.3; the greedy rule is EPLB's, reference 14 of the paper.
    """
    experts_count = len(load_tokens)
    if replicas_count == 0:
        size = split_experts(experts_count, expert_parallel)
        return [[expert // size] for expert in range(experts_count)]
    require(replicas_count > 0, f"`replicas_count` must not be negative, got {replicas_count}")
    room = split_experts(experts_count + replicas_count, expert_parallel)
    copies = np.ones(experts_count, dtype=np.int64)
    hottest = [(-float(load), expert) for expert, load in enumerate(load_tokens)]
    heapq.heapify(hottest)
    for _ in range(replicas_count):
        _, expert = heapq.heappop(hottest)
        copies[expert] += 1
        heapq.heappush(hottest, (-float(load_tokens[expert]) / int(copies[expert]), expert))
    share = load_tokens / copies
    slots = sorted(np.repeat(np.arange(experts_count), copies).tolist(), key=lambda expert: (-share[expert], expert))
    ranks = [(0.0, rank, room) for rank in range(expert_parallel)]
    placed: list[list[int]] = [[] for _ in range(experts_count)]
    for expert in slots:
        load, rank, left = heapq.heappop(ranks)
        placed[expert].append(rank)
        if left > 1:
            heapq.heappush(ranks, (load + float(share[expert]), rank, left - 1))
    return placed


def replay(
    recording: RoutingRecording,
    *,
    expert_parallel: int,
    phase: Phase,
    step_tokens: int,
    samples_count: int,
    seed: np.random.SeedSequence,
    replicas_count: int = 0,
) -> ExpertLoad:
    """I_n and I_d of steps of `step_tokens` tokens on `expert_parallel` ranks, as means of the per-layer maximum.

    A decode step is `step_tokens` tokens of one recorded decode pass, drawn without replacement; a prefill step is a
    contiguous run of prompt tokens. Copies of an expert take its tokens in turn. Raises InputError when the recording
    holds no such step, DomainError for a layout that does not divide.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    windows = _windows(recording, phase, step_tokens, samples_count, generator)
    ranks, experts = expert_parallel, recording.experts_count
    rows_maximum = experts_maximum = experts_mean = 0.0
    for layer in range(recording.layers_count):
        chosen = recording.choices[:, layer, :]
        load = np.bincount(chosen.ravel(), minlength=experts).astype(np.float64)
        placed = place_experts(load, expert_parallel=ranks, replicas_count=replicas_count)
        copies = np.array([len(where) for where in placed])
        first = np.concatenate(([0], np.cumsum(copies)[:-1]))
        rank_of_slot = np.array([rank for where in placed for rank in where])
        picked = chosen[windows]  # (samples, tokens, k)
        turn = np.arange(step_tokens)[None, :, None]
        slots = first[picked] + turn % copies[picked]
        sample = np.arange(len(windows))[:, None, None]
        rows = np.bincount((sample * ranks + rank_of_slot[slots]).ravel(), minlength=len(windows) * ranks)
        used = np.zeros((len(windows), len(rank_of_slot)), dtype=np.int64)
        used[np.broadcast_to(sample, slots.shape), slots] = 1
        distinct = np.zeros((len(windows), ranks), dtype=np.int64)
        np.add.at(distinct.T, rank_of_slot, used.T)
        rows_maximum += float(rows.reshape(-1, ranks).max(axis=1).sum())
        experts_maximum += float(distinct.max(axis=1).sum())
        experts_mean += float(distinct.sum()) / ranks
    count = len(windows) * recording.layers_count
    mean_rows = step_tokens * recording.choices.shape[2] / ranks
    return ExpertLoad(
        ranks,
        phase,
        step_tokens,
        rows_maximum / count / mean_rows,
        experts_maximum / experts_mean,
        count,
        replicas_count,
    )


def replay_table(
    recording: RoutingRecording,
    *,
    expert_parallels: Sequence[int],
    decode_tokens: Sequence[int],
    prefill_tokens: Sequence[int],
    samples_count: int,
    seed: np.random.SeedSequence,
    replicas_count: int = 0,
) -> tuple[ExpertLoad, ...]:
    """The table both step-cost modes read: one row per EP, phase and token count that the recording can answer.

    Token counts for which nothing was recorded are left out. Rows do not depend on the order of the arguments: each
    has its own seed. Raises InputError when no row is left.
    """
    rows: list[ExpertLoad] = []
    wanted = [(Phase.DECODE, t) for t in decode_tokens] + [(Phase.PREFILL, t) for t in prefill_tokens]
    for expert_parallel in expert_parallels:
        for phase, tokens in wanted:
            try:
                row = replay(
                    recording,
                    expert_parallel=expert_parallel,
                    phase=phase,
                    step_tokens=tokens,
                    samples_count=samples_count,
                    seed=_spawn(seed, expert_parallel, tokens, list(Phase).index(phase)),
                    replicas_count=replicas_count,
                )
            except InputError:
                continue
            rows.append(row)
    if not rows:
        raise InputError("routing", recording.source, "hold a step of at least one of the token counts asked for")
    return tuple(sorted(rows))


def load_at(
    table: Sequence[ExpertLoad], *, expert_parallel: int, phase: Phase, step_tokens: Quantity
) -> tuple[Quantity, Quantity]:
    """(I_n, I_d) between rows of a table, straight in log tokens, held at the ends; (1, 1) at EP 1.

    Raises DomainError for an EP or phase that the table does not hold.
    """
    require_at_least(1.0, step_tokens=step_tokens)
    if expert_parallel == 1:
        ones = np.ones(np.shape(step_tokens))
        return (1.0, 1.0) if np.ndim(step_tokens) == 0 else (ones, ones)
    rows = sorted(row for row in table if row.expert_parallel == expert_parallel and row.phase is phase)
    if not rows:
        known = sorted({(row.expert_parallel, str(row.phase)) for row in table})
        raise DomainError(f"no recorded load for EP {expert_parallel}, {phase}; the table holds {known}")
    tokens = np.log([row.step_tokens for row in rows])
    at = np.log(step_tokens)
    pair = [np.interp(at, tokens, [getattr(row, name) for row in rows]) for name in ("rows_factor", "experts_factor")]
    return (float(pair[0]), float(pair[1])) if np.ndim(step_tokens) == 0 else (pair[0], pair[1])


def _windows(
    recording: RoutingRecording, phase: Phase, tokens: int, samples: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """(samples, tokens) indexes of the tokens of each replayed step."""
    require(tokens >= 1 and samples >= 1, "tokens and samples must be at least 1")
    if phase is Phase.PREFILL:
        prompt = np.flatnonzero(~recording.is_decode)
        if len(prompt) < tokens:
            raise InputError("routing", len(prompt), f"hold at least {tokens} prompt tokens")
        starts = generator.integers(0, len(prompt) - tokens + 1, size=samples)
        return np.asarray(prompt[starts[:, None] + np.arange(tokens)])
    decode = np.flatnonzero(recording.is_decode)
    _, first, sizes = np.unique(recording.step[decode], return_index=True, return_counts=True)
    order = np.argsort(recording.step[decode], kind="stable")
    starts = np.searchsorted(recording.step[decode][order], recording.step[decode][first])
    wide = np.flatnonzero(sizes >= tokens)
    if len(wide) == 0:
        raise InputError("routing", int(sizes.max(initial=0)), f"hold a decode step of at least {tokens} requests")
    drawn = generator.choice(wide, size=samples)
    picks = [
        decode[order[starts[step] + generator.choice(sizes[step], size=tokens, replace=False)]]
        for step in drawn.tolist()
    ]
    return np.asarray(picks)


def _spawn(seed: np.random.SeedSequence, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(entropy=seed.entropy, spawn_key=(*seed.spawn_key, *key))
