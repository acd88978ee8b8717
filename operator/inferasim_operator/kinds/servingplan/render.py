"""The ConfigMap of an answer: immutable, named by the digest of its question, the same bytes each time. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inferasim_operator import packing
from inferasim_operator.cli import output
from inferasim_operator.engine import labels, names

ANCHOR_KEY = "anchor.json"
MODEL_CONFIG_KEY = "config.json"
TRACE_KEY = "trace.jsonl"
RESULT_KEY = "result.json"
COMPRESSED_KEY = "result.json.gz"
LEDGER_KEY = "ledger.jsonl.gz"
DIGEST_KEY = "inputDigest"
LEDGER = "ledger"
"""Of an answer: its search's ledger, as text."""
ROLE = "plan-result"
LEDGER_ROLE = "plan-ledger"
PLAIN_LIMIT_BYTES = 512 * 1024
"""Above this the answer is kept compressed; an object of etcd holds about 1 MiB."""
LIMIT_BYTES = 1_000_000


def result_name(plan_name: str, digest: str) -> str:
    """The ConfigMap's name."""
    return names.object_name(plan_name, digest[:16])


def result_config_map(owner: Mapping[str, Any], digest: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """The ConfigMap for an answer of the live plan `owner`. Raises ValueError when it is too large even compressed.

    The ledger of a search by trials is kept beside the answer: `inferasim plan --replay` repeats it.
    """
    text = output.dumps({key: value for key, value in result.items() if key != LEDGER})  # what `inferasim plan` prints
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": labels.child_metadata(owner, result_name(owner["metadata"]["name"], digest), ROLE),
        "immutable": True,
        "data": {DIGEST_KEY: digest},
    }
    binary = {} if LEDGER not in result else {LEDGER_KEY: packing.pack(str(result[LEDGER]))}
    if len(text.encode()) <= PLAIN_LIMIT_BYTES:
        manifest["data"][RESULT_KEY] = text
    else:
        binary[COMPRESSED_KEY] = packing.pack(text)
    size = sum(map(len, (*binary.values(), *manifest["data"].values())))
    if size > LIMIT_BYTES:
        raise ValueError(f"the answer takes {size} bytes, a ConfigMap holds {LIMIT_BYTES}")
    if binary:
        manifest["binaryData"] = binary
    return manifest


def ledger_name(plan_name: str, digest: str) -> str:
    """The ConfigMap of a search by an agent that is under way."""
    return names.object_name(plan_name, digest[:16], "ledger")


def ledger_config_map(owner: Mapping[str, Any], digest: str, text: str) -> dict[str, Any]:
    """The ledger so far of a search that asks a language model, for whoever has to go on with it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": labels.child_metadata(owner, ledger_name(owner["metadata"]["name"], digest), LEDGER_ROLE),
        "data": {DIGEST_KEY: digest},
        "binaryData": {LEDGER_KEY: packing.pack(text)},
    }


def read_ledger(config_map: Mapping[str, Any], digest: str) -> str:
    """The ledger in a live ConfigMap. Raises ValueError when it is not one of this question."""
    packed = (config_map.get("binaryData") or {}).get(LEDGER_KEY)
    if (config_map.get("data") or {}).get(DIGEST_KEY) != digest or packed is None:
        raise ValueError("holds no ledger of this question")
    return packing.unpack(packed)


def read_result(config_map: Mapping[str, Any], digest: str) -> dict[str, Any]:
    """The answer in a live ConfigMap. Raises ValueError when it is not one, or is one to another question."""
    data = config_map.get("data") or {}
    if data.get(DIGEST_KEY) != digest:
        raise ValueError("holds no answer to this question")
    text = data.get(RESULT_KEY)
    if text is None:
        packed = (config_map.get("binaryData") or {}).get(COMPRESSED_KEY)
        if packed is None:
            raise ValueError("holds no answer")
        text = packing.unpack(packed)
    result = json.loads(text)
    if not isinstance(result, dict):
        raise ValueError("its answer is not a JSON object")
    return result
