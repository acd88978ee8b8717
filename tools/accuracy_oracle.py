"""What one number per question can reach at best in practice: the errors of an oracle that knows all answers.

Rows that put the same question (series, layout, lengths, clients) have several answers wherever a table lacks the
column that tells them apart. A prediction gives one number to all of them. The oracle gives the geometric mean of the
very answers it is scored on; its median error is the scatter that no column explains. It is no strict bound: whoever
guesses the right one of two answers errs 0 on half of the rows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

QUESTION = ("series", "layout", "islTokens", "oslTokens", "concurrency")
MEASURES = {"tpot": "tpotMs", "ttft": "ttftMs", "throughput": "throughputTokensPerSecond"}


def oracle_percent(answers: Mapping[Any, Sequence[float]]) -> float | None:
    """Median absolute error [%] of one geometric mean per question over all its answers; None without answers."""
    errors = [
        abs(math.exp(statistics.fmean(math.log(value) for value in values)) / answer - 1.0)
        for values in answers.values()
        for answer in values
    ]
    return 100.0 * statistics.median(errors) if errors else None


def oracle_errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Per quantity the oracle's error over all rows, and over each question's different answers; rows of a report."""
    found = {}
    for quantity, key in MEASURES.items():
        answers: dict[Any, list[float]] = {}
        for row in rows:
            value = row["measured"][key]
            if value is not None and row["error"][quantity] is not None:
                answers.setdefault(tuple(row[name] for name in QUESTION), []).append(value)
        every = oracle_percent(answers)
        different = oracle_percent({question: sorted(set(values)) for question, values in answers.items()})
        if every is not None and different is not None:
            found[quantity] = (every, different)
    return found
