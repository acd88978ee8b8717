"""AnchorHarvest: run one engine for minutes on one node and measure its step times, the anchor."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StrictBool

from inferasim_operator.api.v1alpha1.common import (
    AGE,
    SUBPATH,
    ApiModel,
    Argument,
    Count,
    Digest,
    EnvVar,
    ImageReference,
    Message,
    ModelName,
    ObjectMeta,
    ObjectName,
    PodOptions,
    Positive,
    PrinterColumn,
    Resource,
    ResultReference,
    Rule,
    SecretKey,
    ShortText,
    Timestamp,
    Tokens,
    Width,
    Word,
    atomic_list,
    condition_column,
    justified_boolean,
    map_list,
    unique_by,
)
from inferasim_operator.api.v1alpha1.conditions import ConditionedStatus
from inferasim_operator.api.v1alpha1.configuration import Switch
from simcore.cards.layout import Engine

METRICS_URL = r"^http://(\$\(HOST_IP\)|[A-Za-z0-9.-]+):[0-9]+(/[A-Za-z0-9._~/-]*)?$"
ResourceName = Annotated[str, Field(min_length=3, max_length=317, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9_.-]+$")]

MEASURED = "Measured"
"""Condition: the sweeps ran to their end and wrote an anchor, whatever its checks say."""


class Weights(StrEnum):
    """What the engine loads."""

    REAL = "Real"
    DUMMY = "Dummy"


class HarvestLayout(ApiModel):
    """Parallel widths of the measured engine; an absent width is 1. An anchor has no pipeline.

    `dataParallel` is vLLM's way to state attention ranks; the other engines use `attentionDataParallel`.
    """

    tensor_parallel: Width | None = None
    data_parallel: Width | None = None
    expert_parallel: Width | None = None
    attention_data_parallel: Width | None = None


class SpeculationMethod(StrEnum):
    """Drafters."""

    MTP = "MTP"
    EAGLE = "EAGLE"
    EAGLE3 = "EAGLE3"
    NGRAM = "NGram"


class Speculation(ApiModel):
    """Speculative decoding as it is to run."""

    method: SpeculationMethod
    draft_tokens: Annotated[int, Field(strict=True, ge=1, le=64)]
    draft_model: ModelName | None = None
    forced_acceptance_length_permille: Annotated[int, Field(strict=True, ge=1000, le=65_000)] | None = Field(
        default=None,
        description="Mean tokens committed per verify step, in thousandths, where the engine can force it.",
    )


class HarvestEngine(ApiModel):
    """The engine to measure; its image must hold the harvester package (see docs/harvest-protocol.md)."""

    name: Engine
    version: Word
    image: ImageReference
    extra_args: Annotated[tuple[Argument, ...], Field(max_length=64)] | None = Field(
        default=None, json_schema_extra=atomic_list()
    )
    env: Annotated[tuple[EnvVar, ...], Field(max_length=64), unique_by("name")] | None = Field(
        default=None, json_schema_extra=map_list("name")
    )


class ClaimSource(ApiModel):
    """A checkpoint on a persistent volume, mounted read-only."""

    claim_name: ObjectName
    path: Annotated[str, Field(min_length=1, max_length=1024, pattern=SUBPATH)] | None = Field(
        default=None, description="Folder of the checkpoint inside the volume; its root when absent."
    )


class HubSource(ApiModel):
    """A checkpoint from the model hub; the token's Secret is read by the pod alone."""

    id: ModelName
    revision: Word | None = None
    token_secret: SecretKey | None = None


class ModelSource(ApiModel):
    """Where the checkpoint comes from."""

    claim: ClaimSource | None = None
    hub: HubSource | None = None
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.claim) != has(self.hub)",
            "must set exactly one of `claim` and `hub`",
            lambda m: (m.claim is None) != (m.hub is None),
        ),
    )


class HarvestModel(ApiModel):
    """The model to measure with."""

    name: ModelName
    source: ModelSource
    weights: Weights | None = Field(default=None, description="Real when absent; dummy weights flag the anchor.")


class HarvestAccelerator(ApiModel):
    """The GPUs to measure on."""

    product: Word = Field(
        description="E.g. MI355X; chooses the nodes by `amd.com/gpu.device-id`. CPU is for trying things out: "
        "any node, no GPU asked for, and no plan for a GPU takes the anchor."
    )
    partition: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]+_[a-z0-9]+$")] | None = Field(
        default=None, description="Compute and memory partition mode; spx_nps1 when absent."
    )
    metrics_url: Annotated[str, Field(max_length=512, pattern=METRICS_URL)] | None = Field(
        default=None,
        description="The AMD device metrics exporter of the pod's node, asked whether the GPUs were throttled; "
        "`http://$(HOST_IP):5000/metrics` when absent.",
    )
    resource_name: ResourceName | None = Field(
        default=None, description="Resource that the device plugin offers; amd.com/gpu when absent."
    )


class Signature(ApiModel):
    """The choices that change the kernels: an anchor speaks only for plans with the same ones."""

    weight_dtype: Word | None = None
    activation_dtype: Word | None = None
    kv_dtype: Word | None = None
    expert_dtype: Word | None = None
    attention_backend: Word | None = None
    moe_backend: Word | None = None
    graph_capture: Switch | None = None
    speculation: Speculation | None = None


BatchSize = Annotated[int, Field(strict=True, ge=1, le=65_536)]


class ExpertRouting(ApiModel):
    """The texts to record the router on: random tokens route unlike text."""

    prompts_path: Annotated[str, Field(max_length=1024, pattern=r"^/.+$")] = Field(
        description="A text file in the pod, one prompt a line; mount it with `pod.volumes` and `pod.volumeMounts`."
    )
    output_tokens: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = Field(
        default=None, description="64 when absent."
    )


class Sweeps(ApiModel):
    """The points to measure; the harvester's own choice where absent, shown in its progress."""

    decode_batches: Annotated[tuple[BatchSize, ...], Field(min_length=1, max_length=64)] | None = Field(
        default=None, json_schema_extra=atomic_list()
    )
    decode_prompt_lengths_tokens: Annotated[tuple[Tokens, ...], Field(min_length=1, max_length=2)] | None = Field(
        default=None, json_schema_extra=atomic_list()
    )
    prefill_lengths_tokens: Annotated[tuple[Tokens, ...], Field(min_length=2, max_length=16)] | None = Field(
        default=None, description="Five lengths when absent.", json_schema_extra=atomic_list()
    )
    packed_prefill_probe: Switch | None = Field(default=None, description="Enabled when absent.")
    decode_only: Switch | None = Field(
        default=None,
        description="vLLM: the second of `decodePromptLengthsTokens` on an engine started for it, whose KV cache is "
        "filled without prefill; long contexts cost minutes less. Disabled when absent.",
    )
    collectives: Switch | None = Field(
        default=None,
        description="Time collectives between the GPUs before the engine starts; on MI355X they are held against "
        "published figures. Disabled when absent.",
    )
    expert_routing: ExpertRouting | None = Field(
        default=None, description="SGLang: record the router on an engine started for it. Not recorded when absent."
    )


class AnchorHarvestSpec(ApiModel):
    """The measurement."""

    engine: HarvestEngine
    model: HarvestModel
    accelerator: HarvestAccelerator
    layout: HarvestLayout | None = Field(default=None, description="One GPU when absent.")
    signature: Signature | None = None
    sweeps: Sweeps | None = None
    deadline_seconds: Annotated[int, Field(strict=True, ge=60, le=604_800)] | None = Field(
        default=None, description="Time on the node, counted from the pod's start; 14400 when absent."
    )
    queue_deadline_seconds: Annotated[int, Field(strict=True, ge=60, le=2_592_000)] | None = Field(
        default=None, description="Time from the Job's creation to its end, waiting included; 172800 when absent."
    )
    pod: PodOptions | None = None
    suspend: StrictBool | None = Field(
        default=None,
        description="Release the node while true; the points measured so far are kept.",
        json_schema_extra=justified_boolean("the field of Job"),
    )
    rerun: Word | None = Field(default=None, description="Any new value asks for a second measurement.")


class HarvestProgress(ApiModel):
    """How far the measurement is, as the harvester last said."""

    phase: Word
    points_done: Count
    points_total: Count | None = None
    points: ShortText | None = Field(default=None, description="Done of total, for people.")
    eta_seconds: Count | None = None
    message: ShortText | None = None


class CheckVerdict(StrEnum):
    """What a check says of the anchor."""

    PASSED = "Passed"
    FLAGGED = "Flagged"
    REFUSED = "Refused"


class CheckResult(ApiModel):
    """One named check of the anchor, with its numbers in the detail."""

    name: Word
    verdict: CheckVerdict
    detail: Message | None = None


class RunOutcome(StrEnum):
    """How the measurement of one spec ended; a terminal one is never run again without an edit or a `rerun`."""

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Run(ApiModel):
    """The record of the measurement that the present spec asks for."""

    spec_digest: Digest
    job: ObjectName
    outcome: RunOutcome
    reason: Word | None = None
    message: Message | None = None
    finished_at: Timestamp | None = None


class AnchorHarvestStatus(ConditionedStatus):
    """How the measurement goes, and what came of it."""

    run: Run | None = None
    gpus: Positive | None = Field(default=None, description="GPUs that the Job asks for.")
    progress: HarvestProgress | None = None
    checks: Annotated[tuple[CheckResult, ...], Field(max_length=64), unique_by("name")] | None = Field(
        default=None, json_schema_extra=map_list("name")
    )
    anchor_ref: ResultReference | None = Field(default=None, description="The immutable ConfigMap with the anchor.")


class AnchorHarvest(ApiModel):
    """Measures an engine's step times on one node and keeps them as an anchor."""

    resource: ClassVar[Resource] = Resource(
        kind="AnchorHarvest",
        plural="anchorharvests",
        short_names=("ah",),
        columns=(
            PrinterColumn("Engine", ".spec.engine.name"),
            PrinterColumn("Model", ".spec.model.name"),
            PrinterColumn("Accelerator", ".spec.accelerator.product"),
            PrinterColumn("GPUs", ".status.gpus", type="integer"),
            condition_column("Ready", "Ready"),
            PrinterColumn("Phase", ".status.progress.phase"),
            PrinterColumn("Points", ".status.progress.points"),
            PrinterColumn("ETA-s", ".status.progress.etaSeconds", type="integer"),
            condition_column("Reason", "Ready", field="reason"),
            condition_column("Message", "Ready", field="message", priority=1),
            PrinterColumn("Anchor", ".status.anchorRef.configMap", priority=1),
            AGE,
        ),
    )
    metadata: ObjectMeta
    spec: AnchorHarvestSpec
    status: AnchorHarvestStatus | None = None
