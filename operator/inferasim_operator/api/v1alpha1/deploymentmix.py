"""DeploymentMix: chosen configurations become manifests, are delivered, and are compared with what was predicted."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from inferasim_operator.api.v1alpha1.anchorharvest import ModelSource, ResourceName
from inferasim_operator.api.v1alpha1.common import (
    AGE,
    DNS_LABEL,
    ApiModel,
    Count,
    Digest,
    ImageReference,
    Message,
    ObjectMeta,
    ObjectName,
    ObjectReference,
    Permille,
    PodOptions,
    Positive,
    PrinterColumn,
    Resource,
    ResultReference,
    Rule,
    ShortText,
    SignedPermille,
    StringMap,
    Tokens,
    Word,
    atomic_list,
    condition_column,
    justified_boolean,
    map_list,
    unique_by,
)
from inferasim_operator.api.v1alpha1.conditions import ConditionedStatus
from inferasim_operator.api.v1alpha1.configuration import Prediction, Switch
from inferasim_operator.emit.configuration import Architecture, Configuration
from inferasim_operator.emit.package import Package
from inferasim_operator.emit.target import Format

EMITTED = "Emitted"
DELIVERED = "Delivered"
REPORTING = "Reporting"
PREDICTION_WITHIN_TOLERANCE = "PredictionWithinTolerance"

Label = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
Url = Annotated[str, Field(min_length=8, max_length=2048, pattern=r"^[a-z]+://[^\s]+$")]


class DeliveryType(StrEnum):
    """ConfigMap only writes the manifests down; Apply also applies them here; Git commits them to a repository."""

    CONFIG_MAP = "ConfigMap"
    APPLY = "Apply"
    GIT = "Git"


class MixModel(ApiModel):
    """What the plan does not know of the model."""

    source: ModelSource
    architecture: Architecture | None = Field(
        default=None, description="The built-in card's when absent; needed for a model without one."
    )
    weight_bytes: Positive | None = Field(default=None, description="Size on disk; makes the startup budget.")


class ServingSettings(ApiModel):
    """Settings for configurations of a plan that does not state them; never put in place of a stated one."""

    engine_version: Word | None = Field(default=None, description="Of the image; decides which flags are emitted.")
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] | None = None
    kv_dtype: Annotated[str, Field(max_length=16, pattern=r"^(bf16|fp8)$")] | None = None
    memory_permille: Permille | None = None
    max_batched_tokens: Tokens | None = None
    max_model_length_tokens: Tokens | None = None
    prefix_caching: Switch | None = None


class NamedConfiguration(ApiModel):
    """A configuration that is stated here, not in a plan."""

    name: Label
    configuration: Configuration
    predicted: Prediction | None = None
    peak_prefill_tokens_per_second: Positive | None = Field(
        default=None, description="Measured prefill rate of one replica; llm-d's router works with it."
    )


class GatewayReference(ApiModel):
    """The Gateway that HTTPRoutes attach to."""

    name: ObjectName
    namespace: ObjectName | None = None


class MixImages(ApiModel):
    """Images; the engine's is the anchor's unless stated."""

    engine: ImageReference | None = None
    router: ImageReference | None = Field(default=None, description="SGLang's router, or llm-d's endpoint picker.")
    sidecar: ImageReference | None = Field(default=None, description="llm-d's routing sidecar.")


class RdmaResource(ApiModel):
    """An extended resource of the network cards, per pod; names differ by cluster."""

    name: ResourceName
    count: Annotated[int, Field(ge=1, le=64)]


class GitDelivery(ApiModel):
    """A branch and folder of a repository that belongs to this mix."""

    url: Url
    branch: Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9][-A-Za-z0-9_./]*$")]
    path: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][-A-Za-z0-9_./]*$")]
    secret: ObjectReference | None = Field(
        default=None,
        description="Keys `username` and `password` (or `token`), `ca.crt` for https; `sshKey`, `knownHosts` for ssh.",
    )
    package: Package | None = Field(
        default=None,
        description="Manifests (one file, when absent); Kustomize (a base and an overlay); "
        "Helm (llm-d: the model servers for kustomize, values for its router chart).",
    )


class Delivery(ApiModel):
    """Where the manifests go. They are always kept in a ConfigMap as well."""

    type: DeliveryType
    git: GitDelivery | None = None
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.type == 'Git') == has(self.git)",
            "must have `git` exactly when `type` is Git",
            lambda d: (d.type is DeliveryType.GIT) == (d.git is not None),
        ),
    )


class Observation(ApiModel):
    """Where live figures come from; a direct scrape of the pods when no Prometheus is named."""

    prometheus_url: Annotated[str, Field(min_length=8, max_length=2048, pattern=r"^https?://[^\s?#@]+$")] | None = None
    secret: ObjectReference | None = Field(
        default=None, description="For Prometheus over https: `token`, or `username` and `password`; `ca.crt`."
    )
    window_seconds: Annotated[int, Field(ge=30, le=86_400)] | None = Field(
        default=None, description="Figures are means over this long; 300 when absent."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.secret) || (has(self.prometheusUrl) && self.prometheusUrl.startsWith('https://'))",
            "must name a `secret` only with a `prometheusUrl` of https: it would be sent in the clear",
            lambda o: o.secret is None or (o.prometheus_url or "").startswith("https://"),
        ),
    )


class Tolerance(ApiModel):
    """How far observation may be from prediction, as a share of the prediction."""

    ttft_permille: Annotated[int, Field(ge=1, le=10_000)] | None = None
    tpot_permille: Annotated[int, Field(ge=1, le=10_000)] | None = None
    throughput_permille: Annotated[int, Field(ge=1, le=10_000)] | None = None
    recalibration: Switch | None = Field(
        default=None,
        description="Enabled: while TPOT stays out of tolerance, an anchor scaled to what is observed is kept beside. "
        "No plan takes it by itself, and nothing that runs is changed.",
    )


class DeploymentMixSpec(ApiModel):
    """What to emit and where to."""

    plan_ref: ObjectReference | None = Field(default=None, description="A ServingPlan of this namespace.")
    tiers: Annotated[tuple[Label, ...], Field(min_length=1, max_length=16)] | None = Field(
        default=None,
        description="Only these tiers of the plan; all of them when absent.",
        json_schema_extra=atomic_list(),
    )
    configurations: (
        Annotated[tuple[NamedConfiguration, ...], Field(min_length=1, max_length=16), unique_by("name")] | None
    ) = Field(default=None, json_schema_extra=map_list("name"))
    model: MixModel | None = Field(default=None, description="Needed with `planRef`.")
    serving: ServingSettings | None = None
    format: Format
    namespace: Label | None = Field(default=None, description="Of the manifests; the mix's own when absent.")
    gateway: GatewayReference | None = None
    images: MixImages | None = None
    autoscaling: Switch | None = Field(
        default=None, description="Enabled: replicas belong to an autoscaler, and no `replicas` is emitted."
    )
    monitoring: Switch | None = Field(default=None, description="Enabled: PodMonitors are emitted.")
    pod: PodOptions | None = None
    labels: StringMap | None = Field(default=None, description="Extra labels on every emitted object.")
    rdma_resources: Annotated[tuple[RdmaResource, ...], Field(max_length=8), unique_by("name")] | None = Field(
        default=None, json_schema_extra=map_list("name")
    )
    load_bytes_per_second: Positive | None = Field(
        default=None, description="Measured rate at which weights load; an assumed one when absent."
    )
    delivery: Delivery | None = Field(default=None, description="ConfigMap when absent.")
    observation: Observation | None = None
    tolerance: Tolerance | None = None
    suspend: bool | None = Field(
        default=None,
        description="Emit and deliver nothing new while true; what is there stays.",
        json_schema_extra=justified_boolean("the field of Job and of Flux"),
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.planRef) != has(self.configurations)",
            "must set exactly one of `planRef` and `configurations`",
            lambda s: (s.plan_ref is None) != (s.configurations is None),
        ),
        Rule(
            "!has(self.planRef) || has(self.model)",
            "must set `model` with `planRef`: a plan does not know where the weights are",
            lambda s: s.plan_ref is None or s.model is not None,
        ),
        Rule(
            "!has(self.delivery) || !has(self.delivery.git) || !has(self.delivery.git.package)"
            " || self.delivery.git.package != 'Helm' || self.format == 'LLMD'",
            "must have the `format` LLMD for the `package` Helm: the chart is llm-d's",
            lambda s: s.format is Format.LLMD or s.package is not Package.HELM,
        ),
    )

    @property
    def package(self) -> Package:
        """What the repository gets."""
        git = self.delivery.git if self.delivery is not None else None
        return (git.package if git is not None else None) or Package.MANIFESTS


class InventoryItem(ApiModel):
    """An emitted object."""

    api_version: Annotated[str, Field(max_length=317)]
    kind: Annotated[str, Field(max_length=63)]
    namespace: Annotated[str, Field(max_length=63)]
    name: Annotated[str, Field(max_length=253)]


class ObservedFigures(ApiModel):
    """Means over the window, rounded to three digits."""

    requests: Count
    ttft_milliseconds: Count | None = None
    tpot_microseconds: Count | None = None
    tokens_per_second_per_gpu: Count | None = None


class PredictionError(ApiModel):
    """(observed - predicted) / predicted, in steps of 1 %."""

    ttft_permille: SignedPermille | None = None
    tpot_permille: SignedPermille | None = None
    throughput_permille: SignedPermille | None = None


class DeployedConfiguration(ApiModel):
    """One configuration of the mix: what was chosen, what was promised, what nobody measured."""

    name: Label
    engine: Word
    layout: ShortText
    gpus: Count
    predicted: Prediction | None = None
    flags: Annotated[tuple[ShortText, ...], Field(max_length=32)] | None = Field(
        default=None, json_schema_extra=atomic_list()
    )
    observed_replicas: Positive | None = Field(
        default=None, description="The error is theirs, not the spec's replicas'."
    )
    observed: ObservedFigures | None = None
    error: PredictionError | None = None
    incomparable: Message | None = Field(default=None, description="Why no error can be stated.")
    missing: Annotated[tuple[ShortText, ...], Field(max_length=8)] | None = Field(
        default=None, description="Figures that nobody reports.", json_schema_extra=atomic_list()
    )


class DeliveredRevision(ApiModel):
    """What was delivered last."""

    type: DeliveryType
    digest: Digest
    commit: Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]*$")] | None = None


class DeploymentMixStatus(ConditionedStatus):
    """What became of it."""

    deployments: Annotated[tuple[DeployedConfiguration, ...], Field(max_length=16), unique_by("name")] | None = Field(
        default=None, json_schema_extra=map_list("name")
    )
    manifests: ResultReference | None = Field(default=None, description="The immutable ConfigMap with the manifests.")
    inventory: Annotated[tuple[InventoryItem, ...], Field(max_length=512)] | None = Field(
        default=None, json_schema_extra=atomic_list()
    )
    delivered: DeliveredRevision | None = None
    derived_anchors: Annotated[tuple[ObjectName, ...], Field(max_length=16)] | None = Field(
        default=None, description="ConfigMaps of recalibrated anchors.", json_schema_extra=atomic_list()
    )


class DeploymentMix(ApiModel):
    """Emits the manifests of chosen configurations, delivers them, and reports the error of the prediction."""

    resource: ClassVar[Resource] = Resource(
        kind="DeploymentMix",
        plural="deploymentmixes",
        short_names=("dmx",),
        columns=(
            PrinterColumn("Format", ".spec.format"),
            condition_column("Ready", "Ready"),
            condition_column("Emitted", EMITTED),
            condition_column("Delivered", DELIVERED),
            condition_column("InTolerance", PREDICTION_WITHIN_TOLERANCE),
            PrinterColumn("Summary", ".status.summary"),
            condition_column("Reason", "Ready", field="reason"),
            condition_column("Message", "Ready", field="message", priority=1),
            PrinterColumn("Manifests", ".status.manifests.configMap", priority=1),
            AGE,
        ),
    )
    metadata: ObjectMeta
    spec: DeploymentMixSpec
    status: DeploymentMixStatus | None = None
