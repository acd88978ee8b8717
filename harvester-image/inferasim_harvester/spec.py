"""The harvest spec: what to start and which points to measure. Format: docs/harvest-protocol.md."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from simcore.cards.layout import Engine
from simcore.errors import FormatError

SCHEMA_ID: Final = "inferasim.dev/harvest/v1"
MAX_SPEC_CHARS: Final = 256 * 1024
DEFAULT_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DEFAULT_PROMPT_TOKENS: Final = 1024
DEFAULT_PREFILL_LENGTHS: Final = (512, 1024, 2048, 4096, 8192)
"""Five lengths (paper 3.1.1), inside one step of every engine's default token budget."""

Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f]+$")]
Text = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]+$")]
Argument = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
Width = Annotated[int, Field(ge=1, le=4096)]
Batch = Annotated[int, Field(ge=1, le=65_536)]
Length = Annotated[int, Field(ge=1, le=10_000_000)]
Choice = Literal["Enabled", "Disabled"]


class Part(BaseModel):
    """Base of every part: frozen, camelCase keys, nothing unknown."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class EnginePart(Part):
    """The engine to measure."""

    name: Engine
    version: Name
    image: Annotated[str, Field(max_length=512)] | None = None
    extra_args: Annotated[tuple[Argument, ...], Field(max_length=64)] = ()

    @field_validator("name", mode="before")
    @classmethod
    def _parse_name(cls, value: object) -> object:
        return Engine.parse(value) if isinstance(value, str) else value


class ModelPart(Part):
    """The checkpoint. A path that begins with `-` would be read as a flag."""

    name: Name
    path: Annotated[Text, Field(pattern=r"^[^-\x00-\x1f\x7f][^\x00-\x1f\x7f]*$")]
    revision: Name | None = None
    weights: Literal["Real", "Dummy"] = "Real"


class AcceleratorPart(Part):
    """The GPUs. Product `CPU` marks a harvest for trying things out: no plan accepts it."""

    product: Name
    partition: Annotated[str, Field(pattern=r"^[a-z0-9]+_[a-z0-9]+$", max_length=63)] | None = None


class LayoutPart(Part):
    """Parallel widths of the engine."""

    tensor_parallel: Width = 1
    pipeline_parallel: Literal[1] = 1
    """An anchor has no pipeline."""
    data_parallel: Width = 1
    expert_parallel: Width = 1
    attention_data_parallel: Width = 1


class SpeculationPart(Part):
    """Speculative decoding. Random prompts say nothing about acceptance, so it can be forced."""

    method: Literal["MTP", "EAGLE", "EAGLE3", "NGram"]
    draft_tokens: Annotated[int, Field(ge=1, le=64)]
    draft_model: Text | None = None
    forced_acceptance_length: Annotated[float, Field(ge=1, le=65)] | None = None


class SignaturePart(Part):
    """The choices that define the kernels."""

    weight_dtype: Name | None = None
    activation_dtype: Name | None = None
    kv_dtype: Name | None = None
    expert_dtype: Name | None = None
    attention_backend: Name | None = None
    moe_backend: Name | None = None
    graph_capture: Choice = "Enabled"
    speculation: SpeculationPart | None = None


class ExpertRoutingPart(Part):
    """Recording of the router, on an engine started for it (SGLang). Random tokens route unlike text: text is given."""

    prompts_path: Annotated[Text, Field(pattern=r"^/")]
    """A text file in the container, one prompt a line."""
    output_tokens: Annotated[int, Field(ge=1, le=4096)] = 64


class SweepsPart(Part):
    """The points."""

    decode_batches: Annotated[tuple[Batch, ...], Field(min_length=1, max_length=64)] = DEFAULT_BATCHES
    decode_prompt_lengths_tokens: Annotated[tuple[Length, ...], Field(min_length=1, max_length=2)] = (
        DEFAULT_PROMPT_TOKENS,
    )
    prefill_lengths_tokens: Annotated[tuple[Length, ...], Field(min_length=2, max_length=16)] = DEFAULT_PREFILL_LENGTHS
    packed_prefill_probe: Choice = "Enabled"
    decode_only: Choice | None = None
    """The second prompt length on an engine whose KV cache is filled without prefill (vLLM)."""
    collectives: Choice | None = None
    """Collectives between the GPUs of the layout, before the engine starts."""
    expert_routing: ExpertRoutingPart | None = None

    @field_validator("decode_batches", "decode_prompt_lengths_tokens", "prefill_lengths_tokens")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(value)))


class HarvestSpec(Part):
    """One harvest."""

    schema_id: Literal["inferasim.dev/harvest/v1"] = Field(default=SCHEMA_ID, alias="schema")
    engine: EnginePart
    model: ModelPart
    accelerator: AcceleratorPart
    layout: LayoutPart = LayoutPart()
    signature: SignaturePart = SignaturePart()
    sweeps: SweepsPart = SweepsPart()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        layout, engine = self.layout, self.engine.name
        if engine is not Engine.VLLM and layout.data_parallel > 1:
            raise ValueError("dataParallel copies the engine; measure one copy")
        if layout.data_parallel > 1 and layout.attention_data_parallel > 1:
            raise ValueError("state dataParallel or attentionDataParallel, not both")
        ranks = layout.tensor_parallel * (self.attention_ranks if engine is Engine.VLLM else 1)
        if layout.expert_parallel > 1:
            switch_only = engine in (Engine.VLLM, Engine.ATOM)
            if (switch_only and layout.expert_parallel != ranks) or ranks % layout.expert_parallel:
                raise ValueError(f"expertParallel {layout.expert_parallel} does not fit {ranks} ranks of {engine}")
        if self.sweeps.decode_only == "Enabled":
            if engine is not Engine.VLLM:
                raise ValueError(f"decodeOnly needs a connector that {engine} does not have; it is vLLM's")
            if len(self.sweeps.decode_prompt_lengths_tokens) < 2:
                raise ValueError("decodeOnly measures the second of decodePromptLengthsTokens, and there is one")
        if self.sweeps.expert_routing is not None and engine is not Engine.SGLANG:
            raise ValueError(f"expertRouting needs a recorder that {engine} does not have; it is SGLang's")
        if engine is Engine.ATOM and self.attention_ranks not in (1, layout.tensor_parallel):
            raise ValueError("ATOM splits attention over the whole TP group or not at all")
        return self

    @property
    def attention_ranks(self) -> int:
        """Ranks that own whole requests."""
        return max(self.layout.data_parallel, self.layout.attention_data_parallel)

    @property
    def digest(self) -> str:
        """`sha256:` over the canonical JSON of the parsed spec."""
        plain = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def parse_spec(text: str, where: str = "spec") -> HarvestSpec:
    """The spec in `text`. Raises FormatError with one clear line."""
    if len(text) > MAX_SPEC_CHARS:
        raise FormatError(where, None, "file", f"{len(text)} characters", f"hold at most {MAX_SPEC_CHARS} characters")
    try:
        raw: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(where, None, "file", str(error)[:80], "be one JSON object") from error
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA_ID:
        found = raw.get("schema") if isinstance(raw, dict) else type(raw).__name__
        raise FormatError(where, None, "schema", found, f"be {SCHEMA_ID!r}")
    try:
        return HarvestSpec.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "spec"
        message = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
        value = first["input"] if not isinstance(first["input"], dict | HarvestSpec) else "this spec"
        raise FormatError(where, None, field, value, f"be valid: {message}") from error


def load_spec(path: Path) -> HarvestSpec:
    """The spec in the file at `path`. Raises FormatError."""
    try:
        with path.open(encoding="utf-8") as stream:
            text = stream.read(MAX_SPEC_CHARS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(str(path), None, "file", type(error).__name__, "be a readable UTF-8 file") from error
    return parse_spec(text, path.name)
