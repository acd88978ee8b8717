"""Seeds, ledger, stop rules and local search."""

from __future__ import annotations

import json

import pytest

from simcore.errors import FormatError, InfeasibleError, InputError
from simcore.prediction.predictor import Mode
from simcore.search.ledger import STALE_FRAC, Session, replay
from simcore.search.local import run_local
from simcore.search.objectives import Slo
from simcore.search.seeds import run_seeds, seed_list
from tests.search_spaces import space


def test_the_baseline_is_the_widest_plain_layout_and_comes_first() -> None:
    here = space()
    assert here.baseline == {"layout.tensorParallel": 8, "load.concurrency": 8}
    first = next(iter(seed_list(here)))
    assert first == ("baseline", {})


def test_seeds_change_one_lever_and_are_distinct() -> None:
    here = space(model="DeepSeek-V4-Pro")
    seen = []
    for label, partial in list(seed_list(here))[1:]:
        changed = {name for name, value in here.complete(partial).items() if value != here.complete({})[name]}
        assert changed <= {label, "speculation.draftTokens"}
        assert label in changed
        assert partial not in seen
        seen.append(partial)


def test_only_the_first_seeds_are_kept() -> None:
    session = Session(space(), budget_count=100)
    run_seeds(session, most_count=3)
    assert session.entries[0].origin == "seed: baseline"
    assert len(session.entries) == 3


def test_the_budget_is_a_hard_cap_and_repeats_are_free() -> None:
    session = Session(space(), budget_count=2)
    first = session.try_({}, "a")
    assert session.try_({}, "b") is first
    assert session.try_({"load.concurrency": 1}, "a") is not None
    assert session.try_({"load.concurrency": 64}, "a") is None
    assert session.stop_reason == "the budget is used"
    assert session.try_({}, "after the end") is None


def test_an_illegal_proposal_costs_a_trial_and_is_never_best() -> None:
    session = Session(space(), budget_count=5)
    entry = session.try_({"layout.tensorParallel": 99}, "a")
    assert entry is not None
    assert not entry.trial.legal
    assert session.best is None
    assert session.left_count == 4


def test_the_search_stops_when_the_best_is_stale() -> None:
    """Budget 10: seven trials after the best one, no more (70 % rule)."""
    session = Session(space("replicaGpuCost"), budget_count=10)
    session.try_({"layout.tensorParallel": 1}, "best")
    number = 0
    while session.try_({"maxRunningRequests": 16, "load.concurrency": 8, "nonsense": number}, "a") is not None:
        number += 1
    assert number == STALE_FRAC * 10
    assert "has not changed" in (session.stop_reason or "")


def test_a_budget_outside_the_range_is_refused() -> None:
    for wrong in (0, -1, 10**9):
        with pytest.raises(InputError):
            Session(space(), budget_count=wrong)


def test_no_layout_at_all_is_infeasible_with_the_bytes() -> None:
    """Public case B04: Llama-3.1-405B in 16 bits does not fit one MI355X of 288 GB; latency is not mentioned."""
    with pytest.raises(InfeasibleError, match="memory"):
        _ = space(model="Llama-3.1-405B", gpus=1, slo=Slo(max_ttft_s=0.6)).baseline


def searched(objective: str, budget: int = 120, **changes: object) -> Session:
    session = Session(space(objective, **changes), budget_count=budget)  # type: ignore[arg-type]
    run_seeds(session)
    run_local(session)
    session.close()
    return session


def test_local_search_never_loses_to_its_seeds() -> None:
    seeds = Session(space("decodeThroughputPerGpu"), budget_count=120)
    run_seeds(seeds)
    found = searched("decodeThroughputPerGpu")
    assert seeds.best is not None
    assert found.best is not None
    assert found.best.trial.score_value is not None
    assert found.best.trial.score_value >= (seeds.best.trial.score_value or 0)


@pytest.mark.parametrize("objective", ["decodeThroughputPerGpu", "tpot", "weightMemory"])
def test_local_search_finds_the_best_layout_and_load(objective: str) -> None:
    """All layouts, replica counts and loads by brute force, the other levers at rest."""
    here = space(objective, gpus=4)
    best = None
    for layout in here.layouts:
        for load in here.legal_values["load.concurrency"]:
            for replicas in here.legal_values["replicas"]:
                trial = here.evaluate({**here.widths(layout), "load.concurrency": load, "replicas": replicas})
                if trial.score_value is not None and (best is None or trial.score_value > best):
                    best = trial.score_value
    found = searched(objective, budget=400, gpus=4)
    assert best is not None
    assert found.best is not None
    assert found.best.trial.score_value is not None
    assert found.best.trial.score_value >= best - 1e-12 * abs(best)


def test_the_ledger_replays_to_the_same_decisions() -> None:
    session = searched("interactivity", budget=40, mode=Mode.ANCHORED, model="Qwen3.6-35B-A3B")
    again = replay(session.json_lines(), space("interactivity", mode=Mode.ANCHORED, model="Qwen3.6-35B-A3B"))
    assert again.json_lines() == session.json_lines()
    assert again.best is not None
    assert session.best is not None
    assert again.best.trial.configuration == session.best.trial.configuration


def test_a_doctored_ledger_is_found_out() -> None:
    session = searched("ttft", budget=10)
    lines = [json.loads(line) for line in session.json_lines().splitlines()]
    lines[2]["score"] = 0.0
    with pytest.raises(FormatError, match="line 3"):
        replay([json.dumps(line) for line in lines], space("ttft"))
    with pytest.raises(FormatError, match="line 1"):
        replay(session.json_lines(), space("tpot"))
    for broken in ("", "{}", "nonsense\n", '{"kind":"trial"}\n'):
        with pytest.raises((FormatError, InputError)):
            replay(broken, space("ttft"))


def test_fusions_are_reported_and_chosen_only_where_a_build_can_have_them() -> None:
    plain = space("tpot").evaluate({"load.concurrency": 1})
    assert plain.opportunities
    assert all(share >= 0.02 for share in plain.opportunities.values())
    refused = space("tpot").evaluate({"fusions": "add_rmsnorm"})
    assert not refused.legal
    fused = space("tpot", builds_fusions=True).evaluate({"fusions": "add_rmsnorm", "load.concurrency": 1})
    assert fused.legal
    assert fused.figures["tpot"] < plain.figures["tpot"]  # type: ignore[operator]
    assert "modelled-fusions" in fused.flags
    repeated = space("tpot", builds_fusions=True).evaluate({"fusions": "add_rmsnorm+add_rmsnorm"})
    assert not repeated.legal


def test_a_local_search_goes_on_from_the_nearest_where_nothing_keeps_the_slo() -> None:
    """The SLO is the TTFT of the quickest of all seeds; the baseline alone misses it, and there is no best trial."""
    free = Session(space(), budget_count=1000)
    run_seeds(free)
    quickest = min(entry.trial.figures["ttft"] or 9.9 for entry in free.entries if entry.trial.legal)
    slo = Slo(max_ttft_s=quickest * 1.0001)
    session = Session(space(slo=slo), budget_count=1000)
    run_seeds(session, most_count=1)
    assert session.best is None
    assert session.nearest is not None
    run_local(session)
    assert session.best is not None
    assert session.best.trial.candidate is not None
    assert not slo.misses(session.best.trial.candidate.prediction)
