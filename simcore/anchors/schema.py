"""The anchor: one JSON file per kernel set and width, as paper App. I lists its fields. Format: docs/formats/anchor.md.

Times are milliseconds in the file (people read it) and seconds everywhere else; unknown keys are refused.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from simcore.errors import FormatError, unreadable
from simcore.units import MILLI

SCHEMA_ID: Literal["inferasim.dev/anchor/v1"] = "inferasim.dev/anchor/v1"
MAX_ANCHOR_CHARS = 4 * 1024 * 1024
"""An anchor is a few kilobytes; a larger file is refused before it is parsed."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=253)]


class Record(BaseModel):
    """Base of every part: frozen, camelCase keys, nothing unknown."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class GraphCapture(Record):
    """CUDA/HIP graph capture: mode and the captured batch sizes, ascending."""

    mode: Literal["none", "piecewise", "full"]
    sizes: tuple[Count, ...] = ()

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        _require_ascending(self.sizes, "sizes")
        if self.mode == "none" and self.sizes:
            raise ValueError("mode `none` captures no graph, so `sizes` must be empty")
        return self


class Speculation(Record):
    """Speculative decoding as it ran: method, draft depth, mean tokens committed per verify step."""

    method: Name
    depth: Annotated[int, Field(ge=1, le=64)]
    acceptance_length: Annotated[float, Field(ge=1, le=65)] | None = None


class Signature(Record):
    """What transfer relies on. None means unknown (only benchmark tables have unknowns; a harvest records all)."""

    accelerator_architecture: Name | None = None
    """LLVM target, e.g. gfx950."""
    accelerator: Name
    partition: Name | None = None
    """Compute and memory partition the device reports, e.g. spx_nps1."""
    engine: Name
    engine_version: Name | None = None
    image: Annotated[str, Field(max_length=512)] | None = None
    model: Name
    weights_dtype: Name
    activation_dtype: Name | None = None
    kv_dtype: Name | None = None
    expert_dtype: Name | None = None
    """None on a dense model."""
    attention_backend: Name | None = None
    moe_backend: Name | None = None
    graph_capture: GraphCapture | None = None
    speculation: Speculation | None = None
    tensor_parallel: Annotated[int, Field(ge=1, le=4096)]
    expert_parallel: Annotated[int, Field(ge=1, le=4096)] = 1
    attention_data_parallel: Annotated[int, Field(ge=1, le=4096)] = 1


class DecodePoint(Record):
    """Median decode step of a single wave of `batch` requests (of the whole engine replica)."""

    batch: Count
    step_milliseconds: Positive
    repeats: Count | None = None
    spread: NonNegative | None = None
    """Interquartile range over median."""

    @property
    def step_s(self) -> float:
        return self.step_milliseconds * MILLI


class DecodeSweep(Record):
    """Decode steps at one prompt length, ascending batches."""

    prompt_tokens: Count
    context_tokens: Count
    """Mean context of a request over the measured steps (prompt plus the tokens already produced)."""
    points: Annotated[tuple[DecodePoint, ...], Field(min_length=1, max_length=4096)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _require_ascending([point.batch for point in self.points], "batch")
        if self.context_tokens < self.prompt_tokens:
            raise ValueError("contextTokens counts the prompt too, so it must be at least promptTokens")
        return self


class PrefillPoint(Record):
    """Time to first token of one prompt alone, prefix caching off."""

    prompt_tokens: Count
    milliseconds: Positive
    repeats: Count | None = None
    spread: NonNegative | None = None


class PrefillFit(Record):
    """T(n) = F + c1 n + c2 n^2 over the prefill points."""

    fixed_milliseconds: NonNegative
    per_token_microseconds: NonNegative
    per_token_squared_nanoseconds: NonNegative
    residual_percent: NonNegative
    """Largest absolute relative residual over the points."""


class PrefillSweep(Record):
    """Prefill points, ascending prompt lengths, and their fit."""

    points: Annotated[tuple[PrefillPoint, ...], Field(min_length=1, max_length=256)]
    fit: PrefillFit

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _require_ascending([point.prompt_tokens for point in self.points], "promptTokens")
        return self


class PackedPoint(Record):
    """One step that holds `sequences` whole prompts."""

    sequences: Count
    milliseconds: Positive


class PackedPrefill(Record):
    """Several prompts of the billed length in one step (paper App. E)."""

    sequence_tokens: Count
    token_budget: Count
    """Engine's token budget per step; a step that does not fit was serialised, not packed."""
    points: Annotated[tuple[PackedPoint, ...], Field(min_length=1, max_length=64)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _require_ascending([point.sequences for point in self.points], "sequences")
        return self


class HostTime(Record):
    """CPU work per request, off the GPU's path: adds to TTFT and end-to-end latency only."""

    per_request_milliseconds: NonNegative
    per_prompt_token_microseconds: NonNegative


class MeasuredMemory(Record):
    """Absolute bytes of one GPU as the engine logged them, never a ratio (public case A19)."""

    weights_bytes: int | None = Field(default=None, ge=0)
    non_torch_bytes: int | None = Field(default=None, ge=0)
    graph_bytes: int | None = Field(default=None, ge=0)
    peak_bytes: int | None = Field(default=None, ge=0)
    kv_pool_tokens: int | None = Field(default=None, ge=0)
    """KV tokens of one attention-DP rank."""


class ExpertLoadRow(Record):
    """The busiest EP rank over the mean rank, as a recorded router left it (paper App. B.3)."""

    expert_parallel: Annotated[int, Field(ge=2)]
    phase: Literal["decode", "prefill"]
    step_tokens: Count
    rows_factor: Annotated[float, Field(ge=1)]
    """I_n, routed tokens."""
    experts_factor: Annotated[float, Field(ge=1)]
    """I_d, distinct experts."""
    samples: Count
    """Steps replayed, times layers."""


class CheckRecord(Record):
    """One named harvest check with its numbers."""

    name: Name
    verdict: Literal["pass", "flag", "refuse"]
    detail: Annotated[str, Field(max_length=2000)]
    numbers: dict[str, float] = Field(default_factory=dict)


class Provenance(Record):
    """How the figures came to be."""

    source: Literal["harvested", "fitted", "derived", "paper"]
    harvested_at: Name | None = None
    """RFC 3339 time of the harvest."""
    node: Name | None = None
    real_weights: bool
    prefix_caching_off: bool
    client_command: Annotated[str, Field(max_length=4000)] | None = None
    notes: tuple[Annotated[str, Field(max_length=2000)], ...] = ()
    checks: tuple[CheckRecord, ...] = ()
    residuals: dict[str, float] = Field(default_factory=dict)
    """Relative residuals of a fit by quantity (tpot, ttft, throughput)."""
    max_concurrency: Count | None = None
    """Most requests in flight while measuring; coverage reaches four times as far (paper 5.1)."""


class Anchor(Record):
    """Complete engine steps of one kernel set at one width."""

    schema_id: Literal["inferasim.dev/anchor/v1"] = Field(default=SCHEMA_ID, alias="schema")
    signature: Signature
    decode: Annotated[tuple[DecodeSweep, ...], Field(min_length=1, max_length=2)]
    """One or two sweeps, contexts ascending; two give the context slope."""
    prefill: PrefillSweep
    packed_prefill: PackedPrefill | None = None
    host_time: HostTime | None = None
    memory: MeasuredMemory | None = None
    expert_load: Annotated[tuple[ExpertLoadRow, ...], Field(min_length=1, max_length=4096)] | None = None
    """Recorded on real text; prices a change of EP in place of a uniform router."""
    provenance: Provenance

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        # Equal prompts are allowed at two contexts: rows of one prompt length carry their fitted slope so.
        _require_ascending(list(dict.fromkeys(sweep.prompt_tokens for sweep in self.decode)), "decode.promptTokens")
        _require_ascending([sweep.context_tokens for sweep in self.decode], "decode.contextTokens")
        return self

    @property
    def label(self) -> str:
        """Short name for tables, e.g. `Llama-3.1-8B SGLang MI355X TP1`."""
        sign = self.signature
        text = f"{sign.model.rsplit('/', 1)[-1]} {sign.engine} {sign.accelerator} TP{sign.tensor_parallel}"
        for tag, width in (("EP", sign.expert_parallel), ("ADP", sign.attention_data_parallel)):
            text += f"-{tag}{width}" if width > 1 else ""
        return text

    def to_json(self) -> str:
        """The file's text: sorted keys, two-space indent, no nulls; the same anchor gives the same bytes."""
        return json.dumps(self._plain(), sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def digest(self) -> str:
        """`sha256:` and the hash of the canonical JSON (sorted keys, no spaces, nulls left out)."""
        text = json.dumps(self._plain(), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def _plain(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def parse_anchor(text: str, where: str = "anchor") -> Anchor:
    """The anchor in `text` (JSON). `where` names it in errors. Raises FormatError with one clear line."""
    if len(text) > MAX_ANCHOR_CHARS:
        raise FormatError(where, None, "file", f"{len(text)} characters", f"hold at most {MAX_ANCHOR_CHARS} characters")
    try:
        raw = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except json.JSONDecodeError as error:
        raise FormatError(where, error.lineno, "file", error.msg, "be one JSON object") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(where, None, "file", str(error)[:80], "be plain JSON with finite numbers") from error
    return anchor_from(raw, where)


def anchor_from(raw: object, where: str = "anchor") -> Anchor:
    """The anchor in plain data (a parsed JSON object). Raises FormatError."""
    if not isinstance(raw, dict):
        raise FormatError(where, None, "file", type(raw).__name__, "be one JSON object")
    if raw.get("schema") != SCHEMA_ID:
        raise FormatError(where, None, "schema", raw.get("schema"), f"be {SCHEMA_ID!r}")
    try:
        return Anchor.model_validate(raw)
    except ValidationError as error:
        raise _format_error(error, where) from error


def load_anchor(path: str | Path) -> Anchor:
    """The anchor in the file at `path`. Raises FormatError (also when the file cannot be read)."""
    place = Path(path)
    try:
        with place.open(encoding="utf-8") as stream:
            text = stream.read(MAX_ANCHOR_CHARS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    return parse_anchor(text, place.name)


def _format_error(error: ValidationError, where: str) -> FormatError:
    errors = error.errors(include_url=False)
    first = errors[0]
    count = 1 + sum(other["type"] != "too_short" for other in errors[1:])  # a refused item leaves its list short
    field = ".".join(str(part) for part in first["loc"]) or "anchor"
    value: object = first["input"]
    if first["type"] == "extra_forbidden":
        value, must = first["loc"][-1], "be a key of this format"
    elif first["type"] == "missing":
        value, must = None, "be given"
    elif first["type"] == "value_error":
        value, must = str(first["ctx"]["error"]), "be consistent"
    else:
        message = first["msg"]
        must = message[0].lower() + message[1:]
        must = must.removeprefix("input should ").removeprefix("string should ")
        must = must if must.startswith(("be ", "have ", "match ")) else f"be readable ({must})"
    if isinstance(value, dict | list | tuple | Record):
        value = type(value).__name__
    return FormatError(where, None, field, value, must, f"{count} errors in all" if count > 1 else "")


def _require_ascending(values: Sequence[int], field: str) -> None:
    for low, high in itertools.pairwise(values):
        if high == low:
            raise ValueError(f"`{field}` holds {low} twice")
        if high < low:
            raise ValueError(f"`{field}` must ascend, got {high} after {low}")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"key {key!r} appears twice")
        seen[key] = value
    return seen
