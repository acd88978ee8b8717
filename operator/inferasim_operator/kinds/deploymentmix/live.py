"""What is to be observed for a mix, and what its status says of a report. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from inferasim_operator.api.v1alpha1.deploymentmix import (
    DeployedConfiguration,
    DeploymentMix,
    ObservedFigures,
    PredictionError,
    Tolerance,
)
from inferasim_operator.emit import epp
from inferasim_operator.emit.configuration import Configuration, Role
from inferasim_operator.emit.flagmap import flag_map
from inferasim_operator.emit.objects import selector
from inferasim_operator.emit.pod import CONTAINER
from inferasim_operator.emit.target import Deployment, Format
from inferasim_operator.emit.workloads import leader_selector, pool_name
from inferasim_operator.kinds.deploymentmix.choices import Chosen
from inferasim_operator.kinds.deploymentmix.render import Emission
from inferasim_operator.live.compare import Comparison, Promise
from inferasim_operator.live.export import Key
from inferasim_operator.live.request import Pool, Prometheus, Report, Request, Subject
from simcore.cards.layout import Engine
from simcore.units import MICRO, MILLI

WINDOW_S: Final = 300.0
PERMILLE: Final = 1000
ERROR_STEP_PERMILLE: Final = 10
DIGITS: Final = 3
BLOCK_TOKENS: Final = 16
_METRICS_PORT: Final = "metrics"


@dataclass(frozen=True)
class LiveState:
    """What a pass knows of the live figures of a mix."""

    is_asked_for: bool = False
    report: Report | None = None
    """None = nothing is known yet."""
    problem: str = ""
    """Why nothing can be observed at all."""


def is_asked_for(mix: DeploymentMix) -> bool:
    """Whether live figures are wanted at all."""
    return mix.spec.observation is not None or mix.spec.tolerance is not None


def window_s(mix: DeploymentMix) -> float:
    """The window of the mix."""
    observation = mix.spec.observation
    return float((observation.window_seconds if observation is not None else None) or WINDOW_S)


def tolerance_frac(tolerance: Tolerance | None) -> dict[str, float]:
    """The limits that are stated, by figure."""
    if tolerance is None:
        return {}
    stated = {
        "ttft": tolerance.ttft_permille,
        "tpot": tolerance.tpot_permille,
        "throughput": tolerance.throughput_permille,
    }
    return {name: permille / PERMILLE for name, permille in stated.items() if permille is not None}


def request(mix: DeploymentMix, emission: Emission, prometheus: Prometheus | None) -> Request:
    """What is to be observed for the mix that emits `emission`."""
    subjects = tuple(subject(mix, emission, choice, is_direct=prometheus is None) for choice in emission.chosen)
    limits = tuple(sorted(tolerance_frac(mix.spec.tolerance).items()))
    return Request(mix.metadata.namespace, mix.metadata.name, subjects, window_s(mix), limits, prometheus)


def subject(mix: DeploymentMix, emission: Emission, choice: Chosen, *, is_direct: bool) -> Subject:
    """One deployment: its pools and its promise, or why there is no promise."""
    configuration = choice.deployment.configuration
    key = Key(
        namespace=mix.metadata.namespace,
        mix=mix.metadata.name,
        deployment=choice.deployment.name,
        model=configuration.model.name,
        engine=configuration.engine.value,
        accelerator=configuration.accelerator,
        layout=layout_label(configuration),
    )
    pools = {role: _pool(emission, choice.deployment, role) for role in configuration.roles()}
    problem = _problem(choice, emission)
    if not problem and is_direct and emission.target.namespace != mix.metadata.namespace:
        problem = f"the pods are in namespace {emission.target.namespace}: name a Prometheus that scrapes them"
    engines = pools.get(Role.DECODE) or pools[Role.COLOCATED]
    return Subject(
        key=key,
        promise=None if problem else _promise(choice),
        problem=problem,
        engines=engines,
        prefill=pools.get(Role.PREFILL),
        router=_router(emission, choice.deployment),
    )


def layout_label(configuration: Configuration) -> str:
    """The layout of every pool, without replicas: `TP4`, or `prefill TP4, decode TP8`."""
    labels = {role: configuration.canonical_layout(role).label() for role in configuration.roles()}
    return ", ".join(f"{role.value} {label}" if len(labels) > 1 else label for role, label in labels.items())


def _problem(choice: Chosen, emission: Emission) -> str:
    configuration = choice.deployment.configuration
    if choice.predicted is None:
        return "nothing was predicted for this configuration"
    if configuration.speculation is not None and choice.predicted.acceptance_length_permille is None:
        return "the prediction does not say which acceptance length it holds for"
    if configuration.disaggregation is not None and emission.target.format is not Format.LLMD:
        return "each engine sees a part of a request only, and no endpoint picker of llm-d sees all of it"
    return ""


def _promise(choice: Chosen) -> Promise:
    assert choice.predicted is not None  # noqa: S101 - a choice without a prediction is a problem
    configuration, predicted = choice.deployment.configuration, choice.predicted
    role = Role.DECODE if configuration.disaggregation is not None else Role.COLOCATED
    length = predicted.acceptance_length_permille
    return Promise(
        ttft_s=predicted.ttft_milliseconds * MILLI,
        tpot_s=predicted.tpot_microseconds * MICRO,
        tokens_per_s_per_gpu=float(predicted.tokens_per_second_per_gpu),
        gpus_per_replica_count=configuration.resolved(role).gpus_count,
        concurrency_per_replica=configuration.concurrency / configuration.pool(role).replicas,
        prompt_tokens=float(configuration.prompt_tokens),
        output_tokens=float(configuration.output_tokens),
        block_tokens=configuration.block_size or BLOCK_TOKENS,
        acceptance_length_tokens=None if length is None else length / PERMILLE,
    )


def _pool(emission: Emission, deployment: Deployment, role: Role) -> Pool:
    configuration, target = deployment.configuration, emission.target
    name = pool_name(target, deployment, role)
    workload = next(
        manifest
        for manifest in emission.manifests
        if manifest["kind"] in ("Deployment", "LeaderWorkerSet") and manifest["metadata"]["name"] == name
    )
    container = _engine_container(workload)
    return Pool(
        source=configuration.engine.value,
        namespace=target.namespace,
        labels=_sorted(leader_selector(target, deployment, role)),
        series_labels=_series_labels(selector(target, deployment, role.value)),
        port_name="http",
        path=flag_map(configuration.engine, configuration.engine_version).metrics_path,
        gpus_per_replica_count=configuration.resolved(role).gpus_count,
        model=configuration.model.name,
        container=CONTAINER,
        image=str(container["image"]),
        arguments=tuple(container["args"]),
    )


def _router(emission: Emission, deployment: Deployment) -> Pool | None:
    """The endpoint picker, where only it sees what a client sees: ATOM measures no latency, and a side sees a part."""
    configuration, target = deployment.configuration, emission.target
    is_needed = configuration.engine is Engine.ATOM or configuration.disaggregation is not None
    if target.format is not Format.LLMD or not is_needed:
        return None
    labels = selector(target, deployment, epp.POOL_VALUE)
    return Pool(
        source="EPP",
        namespace=target.namespace,
        labels=_sorted(labels),
        series_labels=_series_labels(labels),
        port_name=_METRICS_PORT,
        path="/metrics",
    )


def _engine_container(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = workload["spec"]
    template = spec["template"] if "template" in spec else spec["leaderWorkerTemplate"]["leaderTemplate"]
    containers: list[Mapping[str, Any]] = template["spec"]["containers"]
    return next(container for container in containers if container["name"] == CONTAINER)


def _sorted(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def _series_labels(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """As the Prometheus operator names them: what is no letter, digit or underscore becomes an underscore."""
    return _sorted({re.sub(r"[^A-Za-z0-9_]", "_", name): value for name, value in labels.items()})


def words(report: Report) -> object:
    """All that the status says of a report."""
    return tuple(sorted((key.deployment, repr(told(found))) for key, found in report.comparisons.items()))


def told(comparison: Comparison) -> dict[str, Any]:
    """The live fields of a `DeployedConfiguration`, in steps coarse enough to stay the same while nothing happens."""
    fields: dict[str, Any] = {"observed_replicas": comparison.replicas_count or None}
    if comparison.reasons:
        return fields | {"incomparable": "; ".join(comparison.reasons)}
    figures = comparison.figures
    observed = ObservedFigures(
        requests=rounded(comparison.requests_count, 2),
        ttft_milliseconds=_of(comparison, "ttft", MILLI),
        tpot_microseconds=_of(comparison, "tpot", MICRO),
        tokens_per_second_per_gpu=_of(comparison, "throughput", 1.0),
    )
    error = PredictionError(**{f"{name}_permille": step(figure.error_ratio) for name, figure in figures.items()})
    return fields | {"observed": observed, "error": error, "missing": comparison.missing or None}


def with_figures(record: DeployedConfiguration, report: Report | None) -> DeployedConfiguration:
    """A deployment's record with what is known of it live."""
    for key, comparison in report.comparisons.items() if report is not None else ():
        if key.deployment == record.name:
            return record.model_copy(update=told(comparison))
    return record


def rounded(value: float, digits: int = DIGITS) -> int:
    """A whole number with so many digits that say something."""
    return round(float(f"{value:.{digits}g}"))


def step(error_ratio: float) -> int:
    """An error in permille, in steps of 1 %."""
    return round(error_ratio * PERMILLE / ERROR_STEP_PERMILLE) * ERROR_STEP_PERMILLE


def _of(comparison: Comparison, figure: str, unit: float) -> int | None:
    found = comparison.figures.get(figure)
    return None if found is None else rounded(found.observed / unit)
