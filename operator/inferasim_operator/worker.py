"""`python -m inferasim_operator.worker`: one shard of a search, in a pod of the plan's Indexed Job.

Reads the question from a file, asks its ConfigMap whether an earlier pod of this index has finished (then there is
nothing to do), prices its share, writes its part of the table if one is asked for, and then what it found. Exit code 0
written, 1 the cluster did not take it (the Job tries again), 2 bad input. It needs the right to patch its own
ConfigMap, and no other.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import pathlib
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from inferasim_operator import packing, planning
from inferasim_operator.engine.actions import Reference
from inferasim_operator.engine.client import Client
from inferasim_operator.errors import OperatorError
from inferasim_operator.kinds.servingplan.search_job import SCORED_KEY, SHARD_KEY, TOTAL_KEY
from inferasim_operator.plan_table import write_table
from simcore.errors import FormatError, InferasimError, InputError

logger = logging.getLogger(__name__)

MANAGER = "inferasim-worker"
ATTEMPTS = 6
FIRST_PAUSE_S = 1.0
PROGRESS_EVERY_S = 5.0
"""Of all shards of a search together."""
_NAME = re.compile(r"([a-z0-9][a-z0-9.-]{0,252})/([a-z0-9][a-z0-9.-]{0,252})")


def run(
    request: Mapping[str, Any],
    client: Client,
    target: Reference,
    *,
    index: int,
    count: int,
    table: pathlib.Path | None = None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> bool:
    """Price shard `index` of `count` into the ConfigMap `target`; False when an earlier pod had done it.

    `table`: the folder that takes this shard's rows. All shards together say how far they are once in PROGRESS_EVERY_S.
    Raises InputError (the question breaks a rule, or a result that no ConfigMap holds) and ClusterError.
    """
    # The answer to an empty patch is the object; no right to read is needed.
    present = _patiently(lambda: client.merge(target, {}), sleep)
    if SHARD_KEY in (present.get("binaryData") or {}):
        return False
    said_s = monotonic_s()

    def tell(progress: Mapping[str, Any]) -> None:
        nonlocal said_s
        if monotonic_s() - said_s < PROGRESS_EVERY_S * count:
            return
        said_s = monotonic_s()
        try:
            client.merge(target, {"data": {SCORED_KEY: str(progress["scored"])}})
        except OperatorError as error:
            logger.warning("progress is not told: %s", error)

    document, rows = planning.compute_part(request, index, count, tell)
    if table is not None:
        write_table(rows, table / f"part-{index:03d}-of-{count:03d}.parquet")
    packed = packing.pack(json.dumps(document, separators=(",", ":"), ensure_ascii=False))
    if len(packed) > packing.LIMIT_BYTES:
        text = f"a result of {len(packed)} bytes"
        raise InputError("search.shards", text, f"be at most {packing.LIMIT_BYTES} bytes", "take more shards")
    change = {
        "data": {SCORED_KEY: str(document["scored"]), TOTAL_KEY: str(document["total"])},
        "binaryData": {SHARD_KEY: packed},
    }
    _patiently(lambda: client.merge(target, change), sleep)
    return True


def read_request(path: pathlib.Path) -> dict[str, Any]:
    """The question in a file, compressed if its name ends so. Raises FormatError."""
    try:
        raw = path.read_bytes()
        document = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise FormatError(str(path), None, "request", type(error).__name__, "be a question in JSON") from error
    if not isinstance(document, dict) or "spec" not in document:
        raise FormatError(str(path), None, "request", type(document).__name__, "hold a `spec`")
    return document


def _patiently(call: Callable[[], dict[str, Any]], sleep: Callable[[float], None]) -> dict[str, Any]:
    """An API server that restarts is waited for; what it refuses for good is not asked again."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return call()
        except OperatorError as error:
            if error.is_terminal or attempt == ATTEMPTS:
                raise
            logger.warning("%s; will be tried again", error)
            sleep(FIRST_PAUSE_S * 2.0 ** (attempt - 1))
    raise AssertionError("the last attempt returns or raises")


def main(arguments: list[str] | None = None) -> int:
    """Run one shard; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m inferasim_operator.worker", description=(__doc__ or "")[:200])
    parser.add_argument("--request", required=True, type=pathlib.Path, help="the question, JSON, maybe .gz")
    parser.add_argument("--shard", required=True, type=int, help="index of the shard, from 0")
    parser.add_argument("--shards", required=True, type=int, help="how many there are")
    parser.add_argument("--config-map", required=True, help="NAMESPACE/NAME that takes the result")
    parser.add_argument("--claims", help="folder that holds a folder per mounted claim")
    parser.add_argument("--table", type=pathlib.Path, help="folder that takes this shard's rows as Parquet")
    parser.add_argument("--kubeconfig", help="kubeconfig file; the pod's service account is used without")
    given = parser.parse_args(arguments)
    logging.basicConfig(level="INFO", stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        match = _NAME.fullmatch(given.config_map)
        if match is None:
            raise InputError("config-map", given.config_map, "be NAMESPACE/NAME")
        request = read_request(given.request)
        if given.claims is not None:
            request["claims"] = given.claims
        client = Client.connect(manager=MANAGER, kubeconfig=given.kubeconfig)
        target = Reference("v1", "ConfigMap", match[1], match[2])
        is_new = run(request, client, target, index=given.shard, count=given.shards, table=given.table)
    except OperatorError as error:
        print(f"inferasim-worker: {error}", file=sys.stderr)
        return 1
    except InferasimError as error:
        print(f"inferasim-worker: {error}", file=sys.stderr)
        return 2
    logger.info("shard %d of %d %s", given.shard, given.shards, "written" if is_new else "was done before")
    return 0


if __name__ == "__main__":
    sys.exit(main())
