"""Explanations against hand-made rows, and the command on the example plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferasim_operator.cli.explain import explain_files
from inferasim_operator.cli.plan import gather
from inferasim_operator.planning import compute_plan
from simcore.errors import InputError
from simcore.search.explain import Row, explain
from simcore.search.tiers import Tier, choose

EXAMPLES = Path(__file__).parents[2] / "examples"
TIER = Tier("t", 50.0, 2.0)
"""Qualifies at 20 ms per token and at a TTFT of 1 s, half the limit."""


def row(layout: str, load: int, throughput: float, *, tpot_ms: float = 10, ttft_s: float = 0.5, gpus: int = 1) -> Row:
    return Row("SGLang", layout, 1, gpus, load, ttft_s, tpot_ms / 1000, throughput)


ROWS = [
    row("TP1", 8, 100.0),
    row("TP1", 16, 150.0, tpot_ms=18),
    row("TP1", 32, 300.0, tpot_ms=25),  # misses the rate
    row("TP2", 8, 60.0),
    row("TP2", 16, 145.0, tpot_ms=19),
    row("TP2", 32, 140.0, tpot_ms=19),
    row("TP8", 16, 400.0, ttft_s=3.0),  # misses TTFT by 200 %
]


def test_the_limit_that_binds_is_the_one_of_the_best_that_is_kept_out() -> None:
    found = explain(ROWS, TIER)
    assert found.chosen == ROWS[1]
    assert found.blocked is not None
    assert found.blocked.row == ROWS[6]
    assert found.blocked.limits == ("ttft",)
    assert found.blocked.gain_frac == pytest.approx(400 / 150 - 1)
    assert found.blocked.miss_frac == pytest.approx(2.0)
    # 1 / (18 ms x 50/s) - 1 = 11 % on the rate, 50 % on TTFT.
    assert found.headroom_frac == pytest.approx(1 / 0.9 - 1)


def test_runners_up_are_other_deployments_with_reason_and_break_even() -> None:
    found = explain(ROWS, TIER)
    other = found.runners_up[0]
    assert other.row == ROWS[4]
    assert other.throughput_frac == pytest.approx(145 / 150 - 1)
    assert "inside the band" in other.why
    assert other.break_even is not None
    assert (other.break_even.holds_at, other.break_even.flips_at) == (16, 32)
    assert "misses interactivity" in other.break_even.reason


def test_nothing_qualifies() -> None:
    found = explain(ROWS, Tier("t", 1000.0, None))
    assert found.chosen is None
    assert "interactivity" in found.why


def test_a_limit_binds_only_what_it_alone_keeps_out() -> None:
    """The fastest of all misses both limits: to lift one of them would not let it in, so neither is said to cost it."""
    both = row("TP1", 64, 900.0, tpot_ms=60, ttft_s=1.5)
    found = explain([*ROWS, both], TIER).blocked
    assert found is not None
    assert (found.row, found.limits) == (ROWS[6], ("ttft",))
    alone = explain([ROWS[1], both], TIER).blocked
    assert alone is not None
    assert (alone.row, alone.limits) == (both, ("interactivity", "ttft"))
    assert alone.miss_frac == pytest.approx(2 / 3)  # 16.7 of 50 tokens/s; its TTFT is 50 % over a second


@given(
    st.lists(
        st.builds(
            lambda layout, load, throughput, tpot, ttft, gpus: row(
                layout, load, throughput, tpot_ms=tpot, ttft_s=ttft, gpus=gpus
            ),
            st.sampled_from(["TP1", "TP2", "TP4"]),
            st.integers(1, 64),
            st.floats(1, 1000),
            st.floats(1, 40),
            st.floats(0.01, 4),
            st.integers(1, 8),
        ),
        max_size=20,
        unique_by=lambda one: one.key,
    )
)
def test_explains_the_rule_s_own_choice(rows: list[Row]) -> None:
    """Companion: whatever the rows, the explanation agrees with the tier rule and contradicts no row."""
    found = explain(rows, TIER)
    index = choose(rows, TIER).chosen
    assert found.chosen == (None if index is None else rows[index])
    if found.chosen is None:
        return
    for other in found.runners_up:
        assert other.row.deployment != found.chosen.deployment
        assert other.row.tpot_s <= 0.02 * (1 + 1e-9)
        assert other.row.ttft_s <= 1.0
        assert other.throughput_frac <= 1 / 0.95 - 1 + 1e-9
    if found.blocked is not None:
        blocked = found.blocked.row
        assert found.blocked.gain_frac > 0
        assert found.blocked.miss_frac > 0
        # What is said to bind is all that keeps it out: by hand, 20 ms and 1 s.
        misses = {"interactivity": 1 / (blocked.tpot_s * 50) < 1, "ttft": blocked.ttft_s > 1.0}
        assert found.blocked.limits == tuple(name for name in sorted(misses) if misses[name])


def test_the_command_explains_files_and_results_alike(tmp_path: Path) -> None:
    files = [str(EXAMPLES / "plan.yaml"), str(EXAMPLES / "anchors")]
    whole = explain_files(files)
    result = compute_plan(gather(files))
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    part = explain_files([str(path)])
    assert [item["tier"] for item in whole["tiers"]] == ["realtime", "interactive", "responsive", "bulk"]
    for one, other, chosen in zip(whole["tiers"], part["tiers"], result["selected"], strict=True):
        assert one["chosen"]["label"] == other["chosen"]["label"]
        assert one["chosen"]["tokensPerSecondPerGpu"] == chosen["predicted"]["tokensPerSecondPerGpu"]
    assert "only its front" in part["scope"]


def test_junk_is_refused(tmp_path: Path) -> None:
    for text in (
        "{}",
        "[]",
        '{"selected": 1, "effective": {}}',
        '{"selected": [], "effective": {}}',
        "\x00",
        "[" * 5000,
    ):
        path = tmp_path / "junk.json"
        path.write_text(text)
        with pytest.raises(InputError):
            explain_files([str(path)])
    with pytest.raises(InputError, match="readable"):
        explain_files([str(tmp_path / "missing.json")])


def test_settings_that_were_tried_are_told_apart(tmp_path: Path) -> None:
    """A plan by trials: two settings of one layout at one load are two rows, from the plan as from its result."""
    answer = compute_plan(
        {
            "spec": {
                "model": {"name": "Llama-3.1-8B"},
                "cluster": {"accelerator": "MI355X", "nodes": 1, "gpuBudget": 1},
                "engines": [{"name": "SGLang"}],
                "workload": {"fixed": {"promptTokens": 1024, "outputTokens": 64}},
                "load": {"concurrencies": [8]},
                "tiers": [{"name": "bulk"}],
                "anchors": {"mode": "Simulate"},
                "search": {"method": "Seeds", "budget": 12},
            }
        }
    )
    path = tmp_path / "result.json"
    path.write_text(json.dumps(answer))
    (tier,) = explain_files([str(path)])["tiers"]
    labels = [tier["chosen"]["label"], *(item["configuration"]["label"] for item in tier["runnersUp"])]
    assert len(set(labels)) == len(labels) > 1
    assert any("=" in label for label in labels)
