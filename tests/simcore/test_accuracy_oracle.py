"""The oracle of the accuracy page, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tools.accuracy_oracle import oracle_errors, oracle_percent


def test_one_number_for_two_answers_is_their_geometric_mean() -> None:
    # sqrt(10 x 40) = 20: 100 % above 10, 50 % below 40; the second question has one answer and no error.
    assert oracle_percent({"q": [10.0, 40.0]}) == pytest.approx(75.0)
    assert oracle_percent({"q": [10.0, 40.0], "r": [7.0]}) == pytest.approx(50.0)
    assert oracle_percent({}) is None


def test_repeats_count_once_among_different_answers_and_unscored_rows_not_at_all() -> None:
    def row(clients: int, tpot_ms: float | None, error: float | None = 0.1) -> dict[str, Any]:
        return {
            "series": "pd:x",
            "layout": "?xTP4+?xTP8",
            "islTokens": 1024,
            "oslTokens": 1024,
            "concurrency": clients,
            "measured": {"tpotMs": tpot_ms, "ttftMs": None, "throughputTokensPerSecond": None},
            "error": {"tpot": error, "ttft": None, "throughput": None},
        }

    rows = [row(4, 10.0), row(4, 40.0), row(8, 5.0), row(8, 5.0), row(8, 5.0), row(16, 9.0, None)]
    every, different = oracle_errors(rows)["tpot"]
    assert every == pytest.approx(0.0)  # errors 100, 50, 0, 0, 0
    assert different == pytest.approx(50.0)  # errors 100, 50, 0
    assert set(oracle_errors(rows)) == {"tpot"}
