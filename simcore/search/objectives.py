"""The 24 objectives of App. K: direction, unit, and which output of the simulator or step model each reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np

from simcore.data.loader import read_data
from simcore.errors import FormatError, UnknownNameError
from simcore.prediction.facts import ReplicaFacts
from simcore.prediction.result import Prediction
from simcore.search.plan import Candidate
from simcore.stepcost.step import Step

OBJECTIVES_FILE = "search/objectives.yaml"


class Direction(StrEnum):
    """Which way is better."""

    MAXIMISE = "maximise"
    MINIMISE = "minimise"


@dataclass(frozen=True)
class Objective:
    """One predicted figure to optimise."""

    name: str
    direction: Direction
    unit: str
    scope: str
    """`fleet`, `gpu`, `replica` or `request`."""
    reads: str

    def score(self, value: float) -> float:
        """Signed so that more is better."""
        return value if self.direction is Direction.MAXIMISE else -value


@dataclass(frozen=True)
class Slo:
    """Latency budgets that a configuration must keep; None = no limit."""

    max_ttft_s: float | None = None
    max_tpot_s: float | None = None

    def misses(self, prediction: Prediction) -> tuple[str, ...]:
        """One text per budget that the means of `prediction` miss."""
        found = []
        if self.max_ttft_s is not None and not prediction.ttft_s <= self.max_ttft_s:
            found.append(f"TTFT {prediction.ttft_s:.4g} s misses the budget of {self.max_ttft_s:g} s")
        if self.max_tpot_s is not None and not prediction.tpot_s <= self.max_tpot_s:
            found.append(f"TPOT {prediction.tpot_s:.4g} s misses the budget of {self.max_tpot_s:g} s")
        return tuple(found)

    def miss_frac(self, prediction: Prediction) -> float:
        """By how much the means miss the budgets, each as a share of its budget, summed; 0 = both are kept."""
        pairs = ((prediction.ttft_s, self.max_ttft_s), (prediction.tpot_s, self.max_tpot_s))
        return sum(max(0.0, reached_s / most_s - 1.0) for reached_s, most_s in pairs if most_s is not None)


@dataclass(frozen=True)
class Reading:
    """A candidate with what its figures are read from."""

    candidate: Candidate
    facts: ReplicaFacts
    prompt_tokens: int
    output_tokens: int
    slo: Slo
    predict: Callable[[int], Prediction]
    """One replica at another number of clients; simulates."""

    @property
    def per_replica(self) -> Prediction:
        return self.candidate.prediction

    @property
    def output_share(self) -> float:
        """Output tokens over all tokens of a request."""
        return self.output_tokens / (self.prompt_tokens + self.output_tokens)

    @property
    def context_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens // 2

    @property
    def tpot_s(self) -> float | None:
        """None where answers have one token."""
        return self.per_replica.tpot.mean_s if self.per_replica.tpot else None

    @property
    def rank_batch(self) -> int:
        """Decoding requests of the busiest rank at the candidate's load."""
        return int(self.per_replica.step_breakdown["decode"]["batch"])


@cache
def objectives() -> Mapping[str, Objective]:
    """All objectives by name. Raises FormatError when one has no figure or a field is missing."""
    found: dict[str, Objective] = {}
    for item in read_data(OBJECTIVES_FILE):
        if set(item) != {"name", "direction", "unit", "scope", "reads"}:
            raise FormatError(OBJECTIVES_FILE, None, "objective", item, "have name, direction, unit, scope and reads")
        found[item["name"]] = Objective(**(item | {"direction": Direction(item["direction"])}))
    if set(found) != set(_FIGURES):
        raise FormatError(OBJECTIVES_FILE, None, "names", sorted(set(found) ^ set(_FIGURES)), "each have one figure")
    return found


def objective(name: str) -> Objective:
    """The objective `name`. Raises UnknownNameError with the nearest names."""
    if name not in objectives():
        raise UnknownNameError("objective", name, objectives())
    return objectives()[name]


def figure(name: str, reading: Reading) -> float | None:
    """The figure of one objective, in its unit; None where it does not exist (TPOT of one-token answers)."""
    return _FIGURES[objective(name).name](reading)


def _decode_throughput(reading: Reading) -> float:
    return reading.candidate.throughput_tokens_per_s


def _total_throughput(reading: Reading) -> float:
    return _decode_throughput(reading) / reading.output_share


def _prefill_throughput(reading: Reading) -> float:
    return _total_throughput(reading) - _decode_throughput(reading)


def _per_gpu(fleet: Callable[[Reading], float]) -> Callable[[Reading], float]:
    return lambda reading: fleet(reading) / reading.candidate.gpus_count


def _generation_rate(reading: Reading) -> float | None:
    e2e_s = reading.per_replica.e2e.mean_s
    return reading.output_tokens / e2e_s if e2e_s else None


def _decode_step(reading: Reading) -> float:
    return float(reading.per_replica.step_breakdown["decode"]["seconds"])


def _step_at(reading: Reading, batch: float) -> float:
    """Seconds of a decode step of a fractional rank batch at mid-output context."""
    cost, context = reading.facts.cost, reading.context_tokens
    low, high = max(1, math.floor(batch)), max(1, math.ceil(batch))
    one, two = cost.price_many(
        np.array([low, high]),
        np.array([low * context, high * context]),
        np.array([low, high]) * min(context, cost.window_tokens),
    )
    return float(one + (two - one) * (batch - low)) if high > low else float(one)


def _pollution(reading: Reading) -> float | None:
    tpot_s, running = reading.tpot_s, reading.per_replica.mean_running
    if tpot_s is None or not running:
        return None
    facts = reading.facts
    pipeline = facts.cost.pipeline
    batch = running / facts.attention_dp_count
    pass_s = _step_at(reading, batch) + _hops_s(facts)
    if pipeline.stages_count > 1 and (reading.per_replica.concurrency or 1) > 1:
        pass_s += pipeline.stages_count * (pipeline.host_fixed_s + pipeline.host_s_per_request * batch)
    # Contexts grow over a run, so a run without prefill may fall below its mid-output step by rounding.
    return max(0.0, tpot_s - pass_s / facts.cost.tokens_per_step)


def _mixed_step(reading: Reading) -> float:
    facts = reading.facts
    chunk = min(facts.chunk_tokens, reading.prompt_tokens)
    decode = Step.of(contexts=[reading.context_tokens] * reading.rank_batch, window_tokens=facts.cost.window_tokens)
    if facts.mixes:
        mixed = Step(
            decode.batch, decode.context_tokens, decode.window_context_tokens, chunk, chunk**2
        )  # the first chunk of a prompt
        return facts.cost.price(mixed)[0]
    return facts.cost.price(decode)[0] + facts.cost.price(Step.of(chunks=[(0, chunk)]))[0]


def _sequences_of_replica(reading: Reading) -> int | None:
    facts = reading.facts
    if facts.pool_tokens_per_rank is None:
        return None
    blocks = math.ceil((reading.prompt_tokens + reading.output_tokens) / facts.block_tokens)
    fitting = facts.pool_tokens_per_rank // (blocks * facts.block_tokens)
    return min(fitting, facts.max_running_requests) * facts.attention_dp_count


def _max_sequences(reading: Reading) -> float | None:
    each = _sequences_of_replica(reading)
    return None if each is None else float(each * reading.candidate.replicas_count)


def _sustains(reading: Reading, clients: int) -> bool:
    prediction = reading.predict(clients)
    if reading.slo != Slo():
        return not reading.slo.misses(prediction)
    return "queueing" not in prediction.flags and prediction.preemptions_count == 0


def _sustainable(reading: Reading) -> float | None:
    """Scans every rung, because sustaining need not be monotone in the number of clients."""
    most = _sequences_of_replica(reading)
    if most is None:
        return None
    rungs = [1 << power for power in range(most.bit_length()) if 1 << power < most] + ([most] if most else [])
    held = next((clients for clients in reversed(rungs) if _sustains(reading, clients)), 0)
    return float(held * reading.candidate.replicas_count)


def _memory_of(key: str) -> Callable[[Reading], float | None]:
    def read(reading: Reading) -> float | None:
        value = reading.per_replica.memory.get(key)
        return None if value is None else float(value)

    return read


def _kv_memory(reading: Reading) -> float | None:
    pool, used = _memory_of("kvPoolBytesPerGpu")(reading), reading.per_replica.kv_occupancy_frac
    return None if pool is None or used is None else pool * used


def _memory_per_gpu(reading: Reading) -> float | None:
    parts = (_memory_of("weightBytesPerGpu")(reading), _memory_of("activationBytes")(reading), _kv_memory(reading))
    return None if None in parts else sum(part for part in parts if part is not None)


def _decode_communication(reading: Reading) -> float:
    facts = reading.facts
    seconds = facts.collectives.decode_s(np.array([float(reading.rank_batch * facts.attention_dp_count)]))
    return float(seconds[0]) + _hops_s(facts)


def _prefill_communication(reading: Reading) -> float:
    fixed, per_token = reading.facts.collectives.prefill_s
    return fixed + per_token * reading.prompt_tokens + _hops_s(reading.facts)


def _hops_s(facts: ReplicaFacts) -> float:
    pipeline = facts.cost.pipeline
    return pipeline.stages_count * pipeline.hop_s if pipeline.stages_count > 1 else 0.0


_FIGURES: Mapping[str, Callable[[Reading], float | None]] = {
    "totalThroughput": _total_throughput,
    "decodeThroughput": _decode_throughput,
    "prefillThroughput": _prefill_throughput,
    "totalThroughputPerGpu": _per_gpu(_total_throughput),
    "decodeThroughputPerGpu": _per_gpu(_decode_throughput),
    "prefillThroughputPerGpu": _per_gpu(_prefill_throughput),
    "ttft": lambda reading: reading.per_replica.ttft_s,
    "tpot": lambda reading: reading.tpot_s,
    "endToEndLatency": lambda reading: reading.per_replica.e2e.mean_s,
    "uncontendedDecodeStep": _decode_step,
    "interactivity": lambda reading: reading.per_replica.interactivity_tokens_per_s,
    "requestGenerationRate": _generation_rate,
    "maxConcurrentSequences": _max_sequences,
    "maxSustainableConcurrency": _sustainable,
    "memoryPerGpu": _memory_per_gpu,
    "kvCacheMemory": _kv_memory,
    "weightMemory": _memory_of("weightBytesPerGpu"),
    "activationMemory": _memory_of("activationBytes"),
    "mixedStepFraction": lambda reading: reading.per_replica.mixed_step_frac,
    "tpotPollution": _pollution,
    "mixedDecodeStep": _mixed_step,
    "decodeCommunication": _decode_communication,
    "prefillCommunication": _prefill_communication,
    "replicaGpuCost": lambda reading: float(reading.candidate.shape.gpus_count),
}
