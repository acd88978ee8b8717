"""Times collectives between local ranks with torch.distributed. A script for the engine's own Python: torch and the
standard library only, nothing of this package.

    python3 collective_bench.py --ranks 8 --out points.json [--smallest-bytes 8192] [--largest-bytes 1073741824]

As paper G.2: the median of seven timing windows, each timed on the slowest rank. Sizes are of the whole tensor.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

WINDOWS = 7
WINDOW_S = 0.01
MOST_REPEATS = 200
Operation = Callable[[], Any]


def main() -> None:
    """Starts the ranks and waits for them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--smallest-bytes", type=int, default=8 << 10)
    parser.add_argument("--largest-bytes", type=int, default=1 << 30)
    given = parser.parse_args()
    processes.spawn(run, (given,), nprocs=given.ranks)


def run(rank: int, given: argparse.Namespace) -> None:
    """One rank; the first writes what all have measured."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(given.port))
    dist.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=given.ranks)
    points: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    group_size = 2
    while group_size <= given.ranks:
        group = dist.new_group(list(range(group_size)))  # every rank must take part in making it
        if rank < group_size:
            for name, make in COLLECTIVES.items():
                size = given.smallest_bytes
                while size <= given.largest_bytes and name not in failures:
                    try:
                        seconds = median_s(make(size, group_size, device, group), device, group)
                    except RuntimeError as error:
                        failures[name] = str(error).splitlines()[0][:200]
                        break
                    points.append({"collective": name, "gpus": group_size, "bytes": size, "seconds": seconds})
                    size *= 2
        dist.barrier()
        group_size *= 2
    if rank == 0:
        record = {
            "schema": "inferasim.dev/collectives/v1",
            "backend": dist.get_backend(),
            "device": torch.cuda.get_device_name(0) if on_gpu else "CPU",
            "torch": torch.__version__,
            "points": points,
            "failures": failures,
        }
        given.out.write_text(json.dumps(record))
    dist.destroy_process_group()


def all_reduce(size: int, _ranks: int, device: Any, group: Any) -> Operation:
    """Every rank ends with the sum of `size` bytes."""
    tensor = torch.zeros(size // 2, dtype=torch.bfloat16, device=device)
    return lambda: dist.all_reduce(tensor, group=group)


def all_gather(size: int, ranks: int, device: Any, group: Any) -> Operation:
    """Every rank ends with all parts, `size` bytes together."""
    whole = torch.zeros(size // 2 // ranks * ranks, dtype=torch.bfloat16, device=device)
    part = torch.zeros(size // 2 // ranks, dtype=torch.bfloat16, device=device)
    return lambda: dist.all_gather_into_tensor(whole, part, group=group)


def all_to_all(size: int, ranks: int, device: Any, group: Any) -> Operation:
    """Every rank exchanges its `size` bytes with the others."""
    count = size // 2 // ranks * ranks
    sent = torch.zeros(count, dtype=torch.bfloat16, device=device)
    received = torch.empty_like(sent)
    return lambda: dist.all_to_all_single(received, sent, group=group)


COLLECTIVES = {"all_reduce": all_reduce, "all_gather": all_gather, "all_to_all": all_to_all}


def median_s(operation: Operation, device: Any, group: Any) -> float:
    """Seconds of one collective: median over windows of the slowest rank's mean."""
    for _ in range(3):
        operation()
    once_s = slowest_s(window_s(operation, 1, device), device, group)
    repeats = max(1, min(MOST_REPEATS, int(WINDOW_S / max(once_s, 1e-7))))
    return statistics.median(slowest_s(window_s(operation, repeats, device), device, group) for _ in range(WINDOWS))


def window_s(operation: Operation, repeats: int, device: Any) -> float:
    """Seconds of one collective on this rank."""
    wait(device)
    started_s = time.perf_counter()
    for _ in range(repeats):
        operation()
    wait(device)
    return (time.perf_counter() - started_s) / repeats


def slowest_s(seconds: float, device: Any, group: Any) -> float:
    """The same number on every rank, so that all go on alike."""
    value = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
    return float(value.item())


def wait(device: Any) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
