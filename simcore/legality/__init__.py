"""Legality: a table keyed by engine, version and backend, three verdicts, all violations at once."""

from simcore.legality.case import Finding, Judgement, LegalityCase, Violation
from simcore.legality.disaggregation import judge_pair
from simcore.legality.enumerate import JudgedLayout, enumerate_layouts
from simcore.legality.judge import batches_without_graph, fp8_kv_needs_output_check, judge
from simcore.legality.table import Verdict, legality_table, parse_version

__all__ = [
    "Finding",
    "JudgedLayout",
    "Judgement",
    "LegalityCase",
    "Verdict",
    "Violation",
    "batches_without_graph",
    "enumerate_layouts",
    "fp8_kv_needs_output_check",
    "judge",
    "judge_pair",
    "legality_table",
    "parse_version",
]
