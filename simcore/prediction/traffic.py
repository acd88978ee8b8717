"""From a scenario's words to the simulator's workload."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcore.des.kernel.fields import Ints
from simcore.des.workload.batch import Batch, Workload, plain_batch
from simcore.errors import InputError
from simcore.prediction.outcome import run_requests
from simcore.prediction.scenario import LengthRange, LoadInput, WorkloadInput
from simcore.units import PS_PER_S


def requests_count(load: LoadInput) -> int:
    """Requests of a run: as stated, else ten per client."""
    if load.requests is not None:
        return load.requests
    if load.concurrency is None:
        raise InputError("load.requests", None, "be given with `requestRate`")
    return run_requests(load.concurrency)


def workload_of(given: WorkloadInput, load: LoadInput) -> Workload:
    """Fixed or drawn lengths, in a closed loop or with Poisson arrivals. Raises InputError."""
    count = requests_count(load)
    rate = load.request_rate

    def batches(seed: np.random.SeedSequence) -> Iterator[Batch]:
        for_prompts, for_outputs, for_arrivals = (np.random.default_rng(part) for part in seed.spawn(3))
        if given.fixed is not None:
            prompts = _drawn(given.fixed.prompt_tokens, count, for_prompts)
            outputs = _drawn(given.fixed.output_tokens, count, for_outputs)
        elif given.synthetic is not None:
            prompts = _drawn(given.synthetic.prompt_tokens, count, for_prompts)
            outputs = _drawn(given.synthetic.output_tokens, count, for_outputs)
        else:
            raise InputError("workload", "trace", "be `fixed` or `synthetic` here", "use `inferasim replay`")
        times = None
        if rate is not None:
            gaps_s = for_arrivals.exponential(1.0 / rate, count)
            times = np.rint(np.cumsum(gaps_s) * PS_PER_S).astype(np.int64)
        yield plain_batch(prompts, outputs, times)

    return Workload(batches, clients=None if rate is not None else load.concurrency, requests_count=count)


def _drawn(length: int | LengthRange, count: int, random: np.random.Generator) -> Ints:
    if isinstance(length, int):
        return np.full(count, length, np.int64)
    return random.integers(length.minimum, length.maximum, count, endpoint=True, dtype=np.int64)
