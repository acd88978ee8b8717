"""`python -m simcore.des.warm`: compile the simulator's kernels into numba's cache, so that no plan waits for it.

Run once per installation (the images and `make setup` do). The cache is keyed by the kernel's source.
"""

from __future__ import annotations

import numpy as np

from simcore.cards.layout import Engine
from simcore.des.closed_loop import closed_loop
from simcore.des.config import Deployment, Pool, SchedulerConfig
from simcore.des.simulate import simulate
from simcore.des.workload.batch import BatchBuilder, Workload
from simcore.stepcost.table import StepTable


def warm() -> None:
    """Run every compiled entry point on two small requests with a shared prefix block."""
    zeros = np.zeros(3, np.int64)
    table = StepTable(np.array([0, 10, 10], np.int64), zeros, zeros, 0, 10, 1, 0, 0)
    rules = SchedulerConfig(Engine.VLLM, 2, 64, 64, 64, block_tokens=1, prefix_caching=True)
    closed_loop(table, rules, concurrency=2, requests=2, prompt_tokens=2, output_tokens=2)
    builder = BatchBuilder()
    for _ in range(2):
        builder.start_session()
        builder.add(2, 2, leaf=builder.path([1]))
    batch = builder.build()
    simulate(Deployment(Pool(table, rules)), Workload(lambda _: iter([batch]), clients=None, block_tokens=1))


if __name__ == "__main__":
    warm()
