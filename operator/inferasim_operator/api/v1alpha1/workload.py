"""Traffic of a ServingPlan: fixed or drawn lengths, shared prefixes, conversations, traces by reference."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from inferasim_operator.api.v1alpha1.common import SUBPATH, ApiModel, ConfigMapKey, ObjectName, Rule, Tokens


class FixedWorkload(ApiModel):
    """Every request has the same lengths."""

    prompt_tokens: Tokens
    output_tokens: Tokens


class LengthRange(ApiModel):
    """Token counts drawn evenly from `minimum` to `maximum`, both included."""

    minimum: Tokens
    maximum: Tokens
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.minimum <= self.maximum",
            "must have a `minimum` of at most `maximum`",
            lambda m: m.minimum <= m.maximum,
        ),
    )


class SharedPrefixes(ApiModel):
    """A pool of prefixes that requests share; number i is asked in proportion to (i + 1)^-exponent."""

    count: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    tokens: Tokens
    zipf_exponent_permille: Annotated[int, Field(strict=True, ge=0, le=10_000)] | None = Field(
        default=None, description="All are asked alike when absent."
    )


class Conversation(ApiModel):
    """Sessions of several requests: each carries the whole context on and adds tokens after the last answer."""

    turns: Annotated[int, Field(strict=True, ge=1, le=10_000)]
    turn_tokens: LengthRange
    think_milliseconds: Annotated[int, Field(strict=True, ge=0, le=86_400_000)] | None = Field(
        default=None, description="Mean time between an answer and the next turn; none when absent."
    )
    shared_tokens: Annotated[int, Field(strict=True, ge=0, le=16_777_216)] | None = Field(
        default=None, description="Leading tokens that all sessions have in common."
    )


class SyntheticWorkload(ApiModel):
    """Lengths are drawn, the same ones for every candidate; of conversations those of the first turn."""

    prompt_tokens: LengthRange
    output_tokens: LengthRange
    prefixes: SharedPrefixes | None = None
    conversation: Conversation | None = None
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.prefixes) || !has(self.conversation)",
            "must set at most one of `prefixes` and `conversation`",
            lambda m: m.prefixes is None or m.conversation is None,
        ),
    )


class ClaimFile(ApiModel):
    """A file on a persistent volume, read by the search's pods."""

    claim_name: ObjectName
    path: Annotated[str, Field(min_length=1, max_length=1024, pattern=SUBPATH)]


class ClaimFolder(ApiModel):
    """A folder on a persistent volume, written by the search's pods."""

    claim_name: ObjectName
    path: Annotated[str, Field(min_length=1, max_length=1024, pattern=SUBPATH)] | None = None


class TraceFormat(StrEnum):
    """Formats that the simulator reads; Auto looks at the file."""

    AUTO = "Auto"
    MOONCAKE = "Mooncake"
    AGENTIC = "Agentic"
    AZURE = "Azure"


class TraceWorkload(ApiModel):
    """Recorded requests by reference. Each replica's clients take the trace's sessions in its order."""

    config_map: ConfigMapKey | None = Field(default=None, description="Key `trace.jsonl` unless said otherwise.")
    claim: ClaimFile | None = Field(default=None, description="For large traces; the search then runs as a Job.")
    format: TraceFormat | None = Field(default=None, description="Auto when absent.")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.configMap) != has(self.claim)",
            "must set exactly one of `configMap` and `claim`",
            lambda m: (m.config_map is None) != (m.claim is None),
        ),
    )


class Workload(ApiModel):
    """What the requests look like."""

    fixed: FixedWorkload | None = None
    synthetic: SyntheticWorkload | None = None
    trace: TraceWorkload | None = None
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(has(self.fixed) ? 1 : 0) + (has(self.synthetic) ? 1 : 0) + (has(self.trace) ? 1 : 0) == 1",
            "must set exactly one of `fixed`, `synthetic` and `trace`",
            lambda m: sum(one is not None for one in (m.fixed, m.synthetic, m.trace)) == 1,
        ),
    )

    @property
    def shares_prefixes(self) -> bool:
        """Whether a cache can find anything."""
        drawn = self.synthetic
        return self.trace is not None or (drawn is not None and (drawn.prefixes or drawn.conversation) is not None)
