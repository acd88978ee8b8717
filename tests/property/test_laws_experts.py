"""Expert load: closed forms against sampling and enumeration, replay against both, placement and curves."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.data.constants import constant
from simcore.errors import DomainError, FormatError, InputError
from simcore.laws.expert_load import uniform_experts_factor, uniform_load, uniform_rows_factor
from simcore.laws.moe import (
    curve_at,
    expert_parallel_transfer,
    independent_coverage,
    kept_surplus,
    replicated_imbalance,
)
from simcore.laws.routing_files import read_recording, read_table, write_npz, write_table
from simcore.laws.routing_replay import (
    ExpertLoad,
    Phase,
    RoutingRecording,
    load_at,
    place_experts,
    replay,
    replay_table,
    uniform_recording,
)

SEED = np.random.SeedSequence(20261130)
ROUTER = {"experts_count": 64, "experts_per_token": 6, "expert_parallel": 8}


def _recording(experts: int = 64, k: int = 6, layers: int = 2, steps: int = 200, tokens: int = 16) -> RoutingRecording:
    return uniform_recording(
        experts_count=experts,
        experts_per_token=k,
        layers_count=layers,
        steps_count=steps,
        step_tokens=tokens,
        seed=SEED,
    )


@pytest.mark.parametrize("tokens", [1, 4, 16])
def test_replay_of_a_uniform_router_gives_the_closed_forms(tokens: int) -> None:
    found = replay(
        _recording(steps=1500), expert_parallel=8, phase=Phase.DECODE, step_tokens=tokens, samples_count=1500, seed=SEED
    )
    # 3000 layer-steps: one standard error is near 0.4 %, three are allowed.
    assert found.rows_factor == pytest.approx(uniform_rows_factor(**ROUTER, step_tokens=tokens), rel=0.012)
    assert found.experts_factor == pytest.approx(uniform_experts_factor(**ROUTER, step_tokens=tokens), rel=0.012)


@given(st.sampled_from([(64, 6), (128, 4), (256, 8)]), st.sampled_from([2, 8, 16]), st.integers(1, 100))
@settings(max_examples=20)
def test_uniform_factors_are_bounded_and_fall_with_tokens(shape: tuple[int, int], ranks: int, tokens: int) -> None:
    experts, k = shape
    router = {"experts_count": experts, "experts_per_token": k, "expert_parallel": ranks}
    for factor in (uniform_rows_factor, uniform_experts_factor):
        few, many = factor(**router, step_tokens=tokens), factor(**router, step_tokens=4 * tokens)
        assert 1.0 <= many <= few <= ranks


@given(st.integers(1, 400), st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
@settings(max_examples=20)
def test_wider_ep_is_never_more_even(tokens: int, ranks: int) -> None:
    router = {"experts_count": 128, "experts_per_token": 8, "step_tokens": tokens}
    for factor in (uniform_rows_factor, uniform_experts_factor):
        assert factor(**router, expert_parallel=2 * ranks) >= factor(**router, expert_parallel=ranks) - 1e-9


@given(st.integers(1, 500))
@settings(max_examples=15)
def test_the_fast_grid_stays_near_the_laws(tokens: int) -> None:
    router = {"experts_count": 256, "experts_per_token": 8, "expert_parallel": 8}
    rows, experts = uniform_load(**router, step_tokens=tokens)
    assert rows == pytest.approx(uniform_rows_factor(**router, step_tokens=tokens), rel=1e-3)
    assert experts == pytest.approx(uniform_experts_factor(**router, step_tokens=tokens), rel=3e-3)


def test_the_fast_grid_takes_arrays() -> None:
    router = {"experts_count": 64, "experts_per_token": 6, "expert_parallel": 8}
    rows, experts = uniform_load(**router, step_tokens=np.array([1.0, 16.0, 4096.0]))
    assert rows.shape == experts.shape == (3,)
    assert np.all(np.diff(rows) < 0)
    assert uniform_load(**{**router, "expert_parallel": 1}, step_tokens=7) == pytest.approx((1.0, 1.0), abs=1e-12)


def test_ranks_that_do_not_divide_the_experts_are_refused() -> None:
    with pytest.raises(DomainError, match="must divide 64 experts, got 7"):
        uniform_rows_factor(experts_count=64, experts_per_token=6, expert_parallel=7, step_tokens=1)


@given(st.lists(st.floats(0.0, 1e6), min_size=16, max_size=16), st.sampled_from([0, 8, 16]))
def test_placement_fills_every_rank_equally(load: list[float], replicas: int) -> None:
    placed = place_experts(np.array(load), expert_parallel=8, replicas_count=replicas)
    per_rank = np.bincount([rank for ranks in placed for rank in ranks], minlength=8)
    assert np.all(per_rank == (16 + replicas) // 8)
    assert all(placed)


def test_placement_replicates_the_hottest() -> None:
    load = np.ones(16)
    load[3] = 100.0
    placed = place_experts(load, expert_parallel=8, replicas_count=8)
    # 100 over 1, 2, ... copies stays above 1, so every replica goes to expert 3: 100/9 per copy.
    assert [len(ranks) for ranks in placed] == [1, 1, 1, 9, *[1] * 12]
    share = np.zeros(8)
    for expert, ranks in enumerate(placed):
        for rank in ranks:
            share[rank] += load[expert] / len(ranks)
    assert share.max() < 0.25 * load.max()


def test_replicas_lower_a_skewed_load() -> None:
    generator = np.random.Generator(np.random.PCG64(7))
    weight = np.ones(64)
    weight[:4] = 20.0
    keys = generator.random((3200, 2, 64)) ** (1.0 / weight)
    choices = np.argsort(-keys, axis=2)[:, :, :6].astype(np.int32)
    recording = RoutingRecording(64, choices, np.repeat(np.arange(100), 32), np.ones(3200, dtype=np.bool_))
    shared = {"expert_parallel": 8, "phase": Phase.DECODE, "step_tokens": 32, "samples_count": 200, "seed": SEED}
    plain, balanced = replay(recording, **shared), replay(recording, **shared, replicas_count=16)
    assert plain.rows_factor > 1.8
    assert balanced.rows_factor < 1.0 + 0.5 * (plain.rows_factor - 1.0)
    assert plain.rows_factor > uniform_rows_factor(**ROUTER, step_tokens=32)


def test_a_replay_is_the_same_each_time_and_in_any_order() -> None:
    recording = _recording()
    shared = {"decode_tokens": [1, 8], "prefill_tokens": [64], "samples_count": 20, "seed": SEED}
    table = replay_table(recording, expert_parallels=[2, 8], **shared)
    assert table == replay_table(recording, expert_parallels=[8, 2], **shared)
    # The recording has no prompt tokens: no row is made up for them.
    assert {(row.expert_parallel, row.phase, row.step_tokens) for row in table} == {
        (ranks, Phase.DECODE, tokens) for ranks in (2, 8) for tokens in (1, 8)
    }
    assert read_table(write_table(table), "table.json") == table
    rows, experts = load_at(table, expert_parallel=8, phase=Phase.DECODE, step_tokens=np.array([1.0, 3.0, 99.0]))
    assert rows[0] > rows[1] > rows[2]
    assert experts[0] > experts[1] > experts[2]
    assert load_at(table, expert_parallel=1, phase=Phase.DECODE, step_tokens=3) == (1.0, 1.0)
    with pytest.raises(DomainError, match="no recorded load for EP 16"):
        load_at(table, expert_parallel=16, phase=Phase.DECODE, step_tokens=3)


def test_a_hand_counted_replay() -> None:
    """Two tokens, four experts, two ranks: tokens take (0, 1) and (0, 2); rank 0 gets 3 of 4 rows, 2 of 3 experts."""
    choices = np.array([[[0, 1]], [[0, 2]]], dtype=np.int32)
    recording = RoutingRecording(4, choices, np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.bool_))
    found = replay(recording, expert_parallel=2, phase=Phase.DECODE, step_tokens=2, samples_count=3, seed=SEED)
    assert found.rows_factor == pytest.approx(3 / 2)
    assert found.experts_factor == pytest.approx(2 / 1.5)
    prompt = RoutingRecording(4, choices, np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.bool_))
    assert replay(
        prompt, expert_parallel=2, phase=Phase.PREFILL, step_tokens=2, samples_count=3, seed=SEED
    ) == ExpertLoad(2, Phase.PREFILL, 2, found.rows_factor, found.experts_factor, 3)
    with pytest.raises(InputError, match="at least 3 requests"):
        replay(recording, expert_parallel=2, phase=Phase.DECODE, step_tokens=3, samples_count=3, seed=SEED)


def test_files_go_there_and_back() -> None:
    recording = _recording(steps=3)
    again = read_recording(write_npz(recording), "recording.npz")
    assert (again.experts_count, again.source) == (recording.experts_count, recording.source)
    for name in ("choices", "step", "is_decode"):
        np.testing.assert_array_equal(getattr(again, name), getattr(recording, name))


def test_our_json_form() -> None:
    text = json.dumps(
        {
            "experts_count": 8,
            "source": "toy",
            "steps": [
                {"phase": "prefill", "choices": [[[0, 3]], [[1, 2]]]},
                {"phase": "decode", "choices": [[[4, 7]]]},
            ],
        }
    )
    recording = read_recording(text.encode(), "toy.json")
    assert recording.choices.tolist() == [[[0, 3]], [[1, 2]], [[4, 7]]]
    assert recording.step.tolist() == [0, 0, 1]
    assert recording.is_decode.tolist() == [False, False, True]


def test_sglang_dump_as_json() -> None:
    """Rank 1 repeats rank 0; layer 0 has no experts; top-k is padded with -1; physical 4 is a copy of expert 0."""
    dense = [[-1, -1, -1], [-1, -1, -1]]
    record = {
        "rank": 0,
        "forward_pass_id": 5,
        "forward_mode": 2,
        "topk_ids_of_layer": [dense, [[4, 1, -1], [2, 3, -1]]],
    }
    mixed = {**record, "forward_mode": 3}
    document = {
        "records": [record, {**record, "rank": 1}, mixed],
        "last_physical_to_logical_map": [[0, 1, 2, 3, 0], [0, 1, 2, 3, 0]],
    }
    recording = read_recording(json.dumps(document).encode(), "dump.json")
    assert recording.experts_count == 4
    assert recording.choices.tolist() == [[[0, 1]], [[2, 3]]]
    assert recording.is_decode.tolist() == [True, True]
    assert recording.step.tolist() == [5, 5]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04broken",
        b"\x80\x05pickle",
        b"{}",
        b"[1]",
        b'{"steps": 3, "experts_count": 4}',
        b'{"steps": [], "experts_count": 4}',
        b'{"steps": [{"phase": "noon", "choices": [[[0]]]}], "experts_count": 4}',
        b'{"steps": [{"phase": "decode", "choices": [[[9]]]}], "experts_count": 4}',
        b'{"steps": [{"phase": "decode", "choices": [[[1, 1]]]}], "experts_count": 4}',
        b'{"steps": [{"phase": "decode", "choices": [[[1.5]]]}], "experts_count": 4}',
        b'{"records": []}',
        b'{"records": [{"forward_mode": 2, "topk_ids_of_layer": [[[0, -1]], [[0, 1]]], "forward_pass_id": 1}]}',
    ],
)
def test_broken_files_get_one_clear_line(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        read_recording(data, "broken")
    assert str(caught.value).startswith("broken: ")
    assert "\n" not in str(caught.value)


@given(st.integers(1, 512), st.integers(0, 3000))
def test_coverage_stays_between_one_token_and_all_experts(experts: int, tokens: int) -> None:
    k = max(1, experts // 32)
    covered = independent_coverage(experts_count=experts, experts_per_token_count=k, step_tokens=tokens)
    assert 0.0 <= covered <= 1.0
    assert independent_coverage(experts_count=experts, experts_per_token_count=k, step_tokens=1) == pytest.approx(
        k / experts
    )


@pytest.mark.parametrize("name", ["fp8", "mxfp4", "bf16"])
def test_few_experts_read_slowly_until_sixteen(name: str) -> None:
    curve = constant(f"moe.few_expert_bandwidth.{name}_frac")
    reached = curve_at(curve=curve, at=np.arange(1.0, 40.0))
    assert np.all(np.diff(reached) >= 0)
    assert np.all(reached[15:] == 1.0)
    assert curve.is_assumed  # only the two ends are measured


@given(st.floats(1.0, 8.0), st.floats(1.0, 8.0), st.floats(1.0, 8.0))
def test_imbalance_composes_over_an_intermediate_ep(first: float, second: float, third: float) -> None:
    def move(expert_s: float, before: float, after: float) -> float:
        return float(
            expert_parallel_transfer(expert_s=expert_s, anchor_imbalance_factor=before, target_imbalance_factor=after)
        )

    assert move(move(0.004, first, second), second, third) == pytest.approx(move(0.004, first, third))
    assert move(0.004, first, first) == pytest.approx(0.004)


@given(st.floats(1.0, 8.0), st.integers(1, 512), st.integers(0, 512))
def test_replicas_and_kept_surplus_only_lower_the_imbalance(imbalance: float, experts: int, replicas: int) -> None:
    bounded = replicated_imbalance(imbalance_factor=imbalance, experts_count=experts, replicas_count=replicas)
    assert 1.0 <= bounded <= imbalance * (1 + 1e-12)
    assert replicated_imbalance(imbalance_factor=imbalance, experts_count=experts, replicas_count=0) == pytest.approx(
        imbalance
    )
    assert kept_surplus(imbalance_factor=imbalance, kept_frac=1.0) == pytest.approx(imbalance)
    assert kept_surplus(imbalance_factor=imbalance, kept_frac=0.0) == 1.0
