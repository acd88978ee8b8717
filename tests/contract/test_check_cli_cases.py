"""The public cases through `inferasim check`.

Companions: tests/simcore/test_memory_properties.py and tests/simcore/test_legality_properties.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from inferasim_operator.cli.check import check_document

CASES = Path(__file__).parents[1] / "golden" / "cases"
CONTRACT = {
    "verdict", "violations", "advisories", "gpusPerEngine", "nodesPerEngine", "attentionTensorParallel",
    "weightBytesPerGpu", "kvBytesPerTokenPerRank", "kvPoolTokensPerRank", "kvPoolTokensPerEngine",
    "longestContextTokens", "concurrencyAtMaxModelLength", "minimumMemoryFraction",
}  # fmt: skip


def _cases() -> list[dict[str, Any]]:
    found = [case for path in sorted(CASES.glob("*.yaml")) for case in yaml.safe_load(path.read_text("utf-8"))]
    for case in found:
        assert case["source"], f"golden case without source: {case}"
        assert case["why"], f"golden case without its arithmetic: {case}"
    return found


def test_each_case_is_named_once() -> None:
    names = [case["id"] for case in _cases()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("case", _cases(), ids=lambda case: case["id"])
def test_public_case(case: dict[str, Any]) -> None:
    answer = check_document(case["document"])
    expect = case["expect"]
    assert set(answer) >= CONTRACT
    assert answer["verdict"] == expect["verdict"], answer["violations"] + answer["unverified"]
    if "rules" in expect:
        seen = sorted([item["rule"], item["value"]] for item in answer["violations"])
        assert seen == sorted(expect["rules"])
    for item in answer["violations"]:
        assert set(item) == {"rule", "tensor", "value", "detail"}
        assert item["tensor"]
    details = " | ".join(item["detail"] for item in answer["violations"])
    for fragment in expect.get("details", []):
        assert fragment in details
    for fragment in expect.get("advisories", []):
        assert fragment in " | ".join(answer["advisories"])
    for key, wanted in expect.get("figures", {}).items():
        value, tolerance = wanted if isinstance(wanted, list) else (wanted, 0)
        assert answer[key] == (pytest.approx(value, rel=tolerance) if tolerance else value), key
    if "widths" in expect:
        assert sorted({row["tensorParallel"] for row in answer["layouts"]}) == expect["widths"]
