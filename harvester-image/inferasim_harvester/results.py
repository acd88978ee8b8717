"""result.json: how a harvest ended, for people and for the operator."""

from __future__ import annotations

import json
import math
from typing import Any

from simcore.anchors.checks import CheckResult, worst
from simcore.anchors.schema import Anchor


def result_text(digest: str, anchor: Anchor, checks: tuple[CheckResult, ...], points_total: int) -> str:
    """result.json of a harvest that wrote its anchor."""
    verdict = worst(checks).value
    return _result(
        digest,
        outcome="Succeeded",
        reason="Measured",
        message=f"{points_total} points, verdict {verdict}",
        verdict=verdict,
        anchorDigest=anchor.digest(),
        checks=[
            {"name": c.name, "verdict": c.verdict.value, "detail": c.detail, "numbers": _finite(dict(c.numbers))}
            for c in checks
        ],
        logTail="",
    )


def failure_text(digest: str, reason: str, message: str, log_tail: str) -> str:
    """result.json of a harvest that failed."""
    return _result(digest, outcome="Failed", reason=reason, message=message[:2000], checks=[], logTail=log_tail)


def _result(digest: str, **record: Any) -> str:
    plain = {"schema": "inferasim.dev/harvest-result/v1", "specDigest": digest, **record}
    return json.dumps(plain, sort_keys=True, indent=2, allow_nan=False) + "\n"


def _finite(numbers: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
