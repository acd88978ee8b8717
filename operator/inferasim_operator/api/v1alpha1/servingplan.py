"""ServingPlan: which configuration serves this model on this cluster within these latency tiers at the least cost.

`ServingPlanSpec.to_dict()` is the `spec` that `inferasim_operator.planning.compute_plan` gets, in the cluster and from
the command line alike.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StrictBool

from inferasim_operator.api.v1alpha1.common import (
    AGE,
    ApiModel,
    ConfigMapKey,
    Count,
    Digest,
    ImageReference,
    Message,
    ModelName,
    ObjectMeta,
    PodOptions,
    Positive,
    PrinterColumn,
    Resource,
    ResultReference,
    Rule,
    SecretKey,
    ShortText,
    StringMap,
    Word,
    atomic_list,
    condition_column,
    justified_boolean,
    map_list,
    unique_by,
)
from inferasim_operator.api.v1alpha1.conditions import ConditionedStatus
from inferasim_operator.api.v1alpha1.configuration import (
    Binding,
    Configuration,
    Layout,
    Prediction,
    Selection,
)
from inferasim_operator.api.v1alpha1.workload import ClaimFolder, Workload
from simcore.cards.layout import Engine

ANCHORS_RESOLVED = "AnchorsResolved"
FEASIBLE = "Feasible"


class AnchorMode(StrEnum):
    """Anchored refuses to go on without a measurement; Simulate ranks only; Auto takes anchors where they apply."""

    ANCHORED = "Anchored"
    SIMULATE = "Simulate"
    AUTO = "Auto"


class ObjectiveName(StrEnum):
    """What the search optimises: the 24 objectives of `simcore/data/search/objectives.yaml`."""

    TOTAL_THROUGHPUT = "totalThroughput"
    DECODE_THROUGHPUT = "decodeThroughput"
    PREFILL_THROUGHPUT = "prefillThroughput"
    TOTAL_THROUGHPUT_PER_GPU = "totalThroughputPerGpu"
    DECODE_THROUGHPUT_PER_GPU = "decodeThroughputPerGpu"
    PREFILL_THROUGHPUT_PER_GPU = "prefillThroughputPerGpu"
    TTFT = "ttft"
    TPOT = "tpot"
    END_TO_END_LATENCY = "endToEndLatency"
    UNCONTENDED_DECODE_STEP = "uncontendedDecodeStep"
    INTERACTIVITY = "interactivity"
    REQUEST_GENERATION_RATE = "requestGenerationRate"
    MAX_CONCURRENT_SEQUENCES = "maxConcurrentSequences"
    MAX_SUSTAINABLE_CONCURRENCY = "maxSustainableConcurrency"
    MEMORY_PER_GPU = "memoryPerGpu"
    KV_CACHE_MEMORY = "kvCacheMemory"
    WEIGHT_MEMORY = "weightMemory"
    ACTIVATION_MEMORY = "activationMemory"
    MIXED_STEP_FRACTION = "mixedStepFraction"
    TPOT_POLLUTION = "tpotPollution"
    MIXED_DECODE_STEP = "mixedDecodeStep"
    DECODE_COMMUNICATION = "decodeCommunication"
    PREFILL_COMMUNICATION = "prefillCommunication"
    REPLICA_GPU_COST = "replicaGpuCost"


class ModelReference(ApiModel):
    """A built-in model card by name, or a Hugging Face `config.json` in a ConfigMap."""

    name: ModelName | None = None
    config_map: ConfigMapKey | None = Field(default=None, description="Key `config.json` unless said otherwise.")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.name) != has(self.configMap)",
            "must set exactly one of `name` and `configMap`",
            lambda m: (m.name is None) != (m.config_map is None),
        ),
    )


class Discovery(ApiModel):
    """The nodes that carry the accelerator, by the GPU operator's labels, whatever runs on them now."""

    node_selector: StringMap | None = Field(default=None, description="Only nodes that carry these labels too.")


class Cluster(ApiModel):
    """The GPUs that the plan may use: counted by hand, or found by labels."""

    accelerator: Word = Field(description="Product, e.g. MI355X.")
    nodes: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = None
    discovery: Discovery | None = Field(
        default=None, description="Needs an operator that serves all namespaces, since nodes belong to none."
    )
    gpus_per_node: Annotated[int, Field(strict=True, ge=1, le=64)] | None = Field(
        default=None, description="The accelerator card's count when absent; found with `discovery`."
    )
    gpu_budget: Annotated[int, Field(strict=True, ge=1, le=262_144)] | None = Field(
        default=None, description="Hard cap over all replicas; all GPUs of the cluster when absent."
    )
    host_kv_gibibytes: Annotated[int, Field(strict=True, ge=1, le=65_536)] | None = Field(
        default=None,
        description="Host memory of each node that may hold KV cache. Layouts are then priced without it and with "
        "their GPUs' share of it, where the engine's tier can be set.",
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.nodes) != has(self.discovery)",
            "must set exactly one of `nodes` and `discovery`",
            lambda m: (m.nodes is None) != (m.discovery is None),
        ),
        Rule(
            "!has(self.discovery) || !has(self.gpusPerNode)",
            "must not set `gpusPerNode` with `discovery`",
            lambda m: m.discovery is None or m.gpus_per_node is None,
        ),
    )


class EngineChoice(ApiModel):
    """An engine that the search may choose."""

    name: Engine
    version: Word | None = None
    image: ImageReference | None = None
    layouts: Annotated[tuple[Layout, ...], Field(min_length=1, max_length=64)] | None = Field(
        default=None,
        description="Only these layouts; an illegal one is an error. All legal layouts when absent.",
        json_schema_extra=atomic_list(),
    )


class Load(ApiModel):
    """How much of it comes at once: a closed loop of clients, or arrivals at a rate."""

    concurrencies: (
        Annotated[tuple[Annotated[int, Field(strict=True, ge=1, le=65_536)], ...], Field(min_length=1, max_length=64)]
        | None
    ) = Field(
        default=None,
        description="Requests in flight over all replicas to consider; the search takes the best of them per tier.",
        json_schema_extra=atomic_list(),
    )
    requests_per_minute: Annotated[int, Field(strict=True, ge=1, le=60_000_000)] | None = Field(
        default=None,
        description="Poisson arrivals over all replicas, which are split evenly; the search takes enough replicas.",
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.concurrencies) != has(self.requestsPerMinute)",
            "must set exactly one of `concurrencies` and `requestsPerMinute`",
            lambda m: (m.concurrencies is None) != (m.requests_per_minute is None),
        ),
    )


class Tier(ApiModel):
    """A latency class. An absent limit does not bind."""

    name: Word
    ttft_milliseconds: Annotated[int, Field(strict=True, ge=1, le=86_400_000)] | None = Field(
        default=None, description="Mean time to first token, at most."
    )
    tokens_per_second_per_user: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] | None = Field(
        default=None, description="1 / TPOT, at least."
    )


class Slo(ApiModel):
    """Mean latencies that every chosen configuration must keep, whatever its tier."""

    ttft_milliseconds: Annotated[int, Field(strict=True, ge=1, le=86_400_000)] | None = None
    tpot_microseconds: Annotated[int, Field(strict=True, ge=1, le=2**40)] | None = None
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.ttftMilliseconds) || has(self.tpotMicroseconds)",
            "must set at least one limit",
            lambda m: m.ttft_milliseconds is not None or m.tpot_microseconds is not None,
        ),
    )


class SearchMethod(StrEnum):
    """Sweep prices all layouts, replicas and loads; Seeds and Agent, trial by trial, also change engine settings."""

    SWEEP = "Sweep"
    SEEDS = "Seeds"
    AGENT = "Agent"


class AgentEndpoint(ApiModel):
    """A chat model that proposes configurations; it is sent the model's shape, the legal values and the trials."""

    url: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^https?://[^\s@]+$")] = Field(
        description="Base of an OpenAI-compatible API, e.g. https://llm.example/v1."
    )
    model: ModelName = Field(description="Name at the endpoint, or a LiteLLM name with its provider.")
    secret: SecretKey | None = Field(
        default=None, description="Holds the API key. The operator reads this Secret and gives the key to nobody else."
    )
    guidance: ShortText | None = Field(default=None, description="Words of yours for the model.")


class Search(ApiModel):
    """How the answer is searched for."""

    method: SearchMethod | None = Field(
        default=None,
        description="Sweep when absent. Seeds: one lever at a time, then a local search. Agent: a language model "
        "proposes between the two.",
    )
    budget: Annotated[int, Field(strict=True, ge=1, le=2_000)] | None = Field(
        default=None,
        description="Trials of Seeds or Agent per engine and tier, 200 when absent; with Agent as many requests to the "
        "language model too, however often the operator restarts.",
    )
    agent: AgentEndpoint | None = None
    shards: Annotated[int, Field(strict=True, ge=1, le=64)] | None = Field(
        default=None,
        description="Pods of an Indexed Job; 1 = the operator's own process. By the size of the search when absent. "
        "It does not change the answer.",
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.agent) || has(self.method) && self.method == 'Agent'",
            "must set `agent` with method Agent only",
            lambda m: m.agent is None or m.method is SearchMethod.AGENT,
        ),
        Rule(
            "!has(self.method) || self.method == 'Sweep' || !has(self.shards)",
            "must not set `shards` with methods Seeds and Agent, where a trial follows from the ones before",
            lambda m: m.method in (None, SearchMethod.SWEEP) or m.shards is None,
        ),
        Rule(
            "!has(self.budget) || has(self.method) && self.method != 'Sweep'",
            "must set `budget` with methods Seeds and Agent only",
            lambda m: m.budget is None or m.method not in (None, SearchMethod.SWEEP),
        ),
    )

    @property
    def is_tried(self) -> bool:
        """Whether configurations are proposed one by one."""
        return self.method in (SearchMethod.SEEDS, SearchMethod.AGENT)


class Demand(ApiModel):
    """What one model must serve in one tier."""

    tier: Word
    tokens_per_second: Positive = Field(description="Output tokens of all its users.")
    model: ModelName | None = Field(default=None, description="A built-in card; the plan's own model when absent.")
    workload: Workload | None = Field(default=None, description="Of that model; the plan's own when absent.")


class Results(ApiModel):
    """Where the table of all candidates goes, as Parquet: a file per shard in a folder named as the answer is."""

    claim: ClaimFolder


class AnchorSelector(ApiModel):
    """Which anchors of the namespace the plan may use: all of them when nothing is said."""

    mode: AnchorMode | None = Field(default=None, description="Anchored when absent.")
    match_labels: StringMap | None = None


class ServingPlanSpec(ApiModel):
    """The question."""

    model: ModelReference
    cluster: Cluster
    engines: Annotated[tuple[EngineChoice, ...], Field(min_length=1, max_length=8), unique_by("name")] = Field(
        json_schema_extra=map_list("name")
    )
    workload: Workload
    load: Load
    tiers: Annotated[tuple[Tier, ...], Field(min_length=1, max_length=16), unique_by("name")] | None = Field(
        default=None,
        description="The four of the paper when absent: realtime, interactive, responsive, bulk.",
        json_schema_extra=map_list("name"),
    )
    objective: ObjectiveName | None = Field(
        default=None,
        description="Best by this among those that meet a tier; when absent, most headroom within 5 % of the best "
        "throughput per GPU.",
    )
    slo: Slo | None = None
    demands: Annotated[tuple[Demand, ...], Field(min_length=1, max_length=64)] | None = Field(
        default=None,
        description="Several tiers, and models, share the GPU budget: replicas are then those that serve the most of "
        "these demands with the fewest GPUs. Tiers without a demand get none.",
        json_schema_extra=atomic_list(),
    )
    anchors: AnchorSelector | None = None
    search: Search | None = None
    results: Results | None = Field(default=None, description="The search then runs as a Job, whose pods write there.")
    pod: PodOptions | None = Field(default=None, description="For the pods of a search that runs as a Job.")
    suspend: StrictBool | None = Field(
        default=None,
        description="Start no new search while true; what is there stays.",
        json_schema_extra=justified_boolean("the field of Job and of Flux"),
    )
    rerun: Word | None = Field(default=None, description="Any new value asks for a second run of the same question.")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.search) || !has(self.search.method) || self.search.method == 'Sweep' "
            "|| has(self.workload.fixed) && has(self.load.concurrencies) && !has(self.demands)",
            "must set `workload.fixed` and `load.concurrencies`, and no `demands`, with search methods Seeds and Agent",
            lambda m: (
                m.search is None
                or not m.search.is_tried
                or (m.workload.fixed is not None and m.load.concurrencies is not None and m.demands is None)
            ),
        ),
        Rule(
            "!has(self.demands) || has(self.load.concurrencies) && !(has(self.search) && has(self.search.shards))",
            "must set `load.concurrencies`, and no `search.shards`, with `demands`",
            lambda m: (
                m.demands is None
                or (m.load.concurrencies is not None and (m.search is None or m.search.shards is None))
            ),
        ),
        Rule(
            "!has(self.workload.trace) || has(self.load.concurrencies)",
            "must set `load.concurrencies` with `workload.trace`",
            lambda m: m.workload.trace is None or m.load.concurrencies is not None,
        ),
        Rule(
            "!(has(self.results) || has(self.workload.trace) && has(self.workload.trace.claim)) || !has(self.demands) "
            "&& (!has(self.search) || !has(self.search.method) || self.search.method == 'Sweep')",
            "must set search method Sweep, and no `demands`, with `results` or a trace on a volume",
            lambda m: not m.needs_volumes or (m.demands is None and (m.search is None or not m.search.is_tried)),
        ),
        Rule(
            "!has(self.cluster.hostKvGibibytes) || has(self.workload.trace) || has(self.workload.synthetic) "
            "&& (has(self.workload.synthetic.prefixes) || has(self.workload.synthetic.conversation))",
            "must set a workload whose requests share prefixes with `cluster.hostKvGibibytes`",
            lambda m: m.cluster.host_kv_gibibytes is None or m.workload.shares_prefixes,
        ),
    )

    @property
    def needs_volumes(self) -> bool:
        """Whether the search reads or writes volumes, which the operator's own process cannot."""
        trace = self.workload.trace
        return self.results is not None or (trace is not None and trace.claim is not None)


class SearchProgress(ApiModel):
    """How far the search is; written every few seconds at most."""

    candidates_scored: Count
    candidates_total: Count | None = None
    best: Message | None = None
    shards: ShortText | None = Field(default=None, description="Shards done of all, e.g. 3/8.")


class Allocation(ApiModel):
    """What one demand gets of the shared GPUs."""

    tier: Word
    model: ModelName
    demand_tokens_per_second: Count
    served_tokens_per_second: Count
    gpus: Count
    configuration: Configuration | None = Field(default=None, description="Absent when nothing of it is served.")
    predicted: Prediction | None = None
    unserved: Message | None = Field(default=None, description="Why a part of the demand, or all, is not served.")


class Mix(ApiModel):
    """How the demands share the GPU budget."""

    gpu_budget: Positive
    gpus: Count
    demand_tokens_per_second: Count
    served_tokens_per_second: Count
    bound_tokens_per_second: Count = Field(description="No mix of these options serves more.")
    allocations: Annotated[tuple[Allocation, ...], Field(max_length=64)] = Field(json_schema_extra=atomic_list())


class SearchRecord(ApiModel):
    """How trials went, with methods Seeds and Agent; the ledger is in the result's ConfigMap, key `ledger.jsonl.gz`."""

    method: SearchMethod
    budget: Positive = Field(description="Trials per engine and tier, at most.")
    trials: Count
    refused: Count = Field(description="Trials that were illegal or missed a limit.")
    model_requests: Count | None = Field(
        default=None,
        description="Requests to the language model that were granted, over all restarts of the operator; those made "
        "are no more, and a search has no more than it has trials. Absent with Seeds.",
    )
    model_failures: Annotated[tuple[ShortText, ...], Field(max_length=8)] | None = Field(
        default=None,
        description="Answers of the language model that could not be used.",
        json_schema_extra=atomic_list(),
    )


class RecommendedHarvest(ApiModel):
    """A missing anchor, and what measuring it would bring."""

    engine: Engine
    accelerator: Word
    layout: Layout
    reason: Message
    expected_gain_permille: Count | None = Field(
        default=None,
        description="Throughput per GPU that choosing with the measurement brings on average; absent when not known.",
    )
    change_permille: Count | None = Field(default=None, description="Probability that the choice changes.")
    interval_permille: Count | None = Field(
        default=None, description="Width of the 80 % interval of the throughput, which the measurement would shrink."
    )


class Provenance(ApiModel):
    """What the answer was computed from."""

    inferasim_version: Word
    model_digest: Digest | None = None
    anchor_digests: Annotated[tuple[Digest, ...], Field(max_length=64)] | None = Field(
        default=None, json_schema_extra=atomic_list()
    )


class DiscoveredNodes(ApiModel):
    """What `cluster.discovery` found."""

    nodes: Count
    gpus_per_node: Count = Field(description="Of the node with the fewest.")


class ServingPlanStatus(ConditionedStatus):
    """The answer."""

    input_digest: Digest | None = Field(default=None, description="Digest of the question that the status speaks of.")
    discovered: DiscoveredNodes | None = None
    progress: SearchProgress | None = None
    selected: Annotated[tuple[Selection, ...], Field(max_length=16), unique_by("tier")] | None = Field(
        default=None, json_schema_extra=map_list("tier")
    )
    binding: Annotated[tuple[Binding, ...], Field(max_length=16), unique_by("tier")] | None = Field(
        default=None, json_schema_extra=map_list("tier")
    )
    mix: Mix | None = None
    search: SearchRecord | None = None
    result: ResultReference | None = Field(
        default=None, description="The immutable ConfigMap with the whole answer, the Pareto front included."
    )
    table: ShortText | None = Field(default=None, description="Folder of the Parquet files, as claim/path.")
    recommended_harvests: Annotated[tuple[RecommendedHarvest, ...], Field(max_length=16)] | None = Field(
        default=None, json_schema_extra=atomic_list()
    )
    provenance: Provenance | None = None


class ServingPlan(ApiModel):
    """Finds the best serving configuration per latency tier from measured anchors."""

    resource: ClassVar[Resource] = Resource(
        kind="ServingPlan",
        plural="servingplans",
        short_names=("sp",),
        columns=(
            PrinterColumn("Accelerator", ".spec.cluster.accelerator"),
            condition_column("Ready", "Ready"),
            condition_column("Feasible", "Feasible"),
            PrinterColumn("Scored", ".status.progress.candidatesScored", type="integer"),
            PrinterColumn("Answer", ".status.summary"),
            condition_column("Reason", "Ready", field="reason"),
            condition_column("Message", "Ready", field="message", priority=1),
            PrinterColumn("Result", ".status.result.configMap", priority=1),
            AGE,
        ),
    )
    metadata: ObjectMeta
    spec: ServingPlanSpec
    status: ServingPlanStatus | None = None
