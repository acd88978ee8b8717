"""The ConfigMap of an answer: immutable, named by the digest of its question, the same bytes each time. Pure."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any

from inferasim_operator.cli import output
from inferasim_operator.engine import labels, names

ANCHOR_KEY = "anchor.json"
MODEL_CONFIG_KEY = "config.json"
RESULT_KEY = "result.json"
COMPRESSED_KEY = "result.json.gz"
DIGEST_KEY = "inputDigest"
ROLE = "plan-result"
PLAIN_LIMIT_BYTES = 512 * 1024
"""Above this the answer is kept compressed; an object of etcd holds about 1 MiB."""
LIMIT_BYTES = 1_000_000


def result_name(plan_name: str, digest: str) -> str:
    """The ConfigMap's name."""
    return names.object_name(plan_name, digest[:16])


def result_config_map(owner: Mapping[str, Any], digest: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """The ConfigMap for an answer of the live plan `owner`. Raises ValueError when it is too large even compressed."""
    text = output.dumps(result)  # the bytes that `inferasim plan -o json` prints for the same question
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": result_name(owner["metadata"]["name"], digest),
            "namespace": owner["metadata"]["namespace"],
            "labels": labels.child_labels(owner, role=ROLE),
            "ownerReferences": [labels.owner_reference(owner)],
        },
        "immutable": True,
        "data": {DIGEST_KEY: digest},
    }
    if len(text.encode()) <= PLAIN_LIMIT_BYTES:
        manifest["data"][RESULT_KEY] = text
        return manifest
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")
    if len(packed) > LIMIT_BYTES:
        raise ValueError(f"the answer takes {len(packed)} bytes, a ConfigMap holds {LIMIT_BYTES}")
    manifest["binaryData"] = {COMPRESSED_KEY: packed}
    return manifest


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
        text = gzip.decompress(base64.b64decode(packed)).decode()
    result = json.loads(text)
    if not isinstance(result, dict):
        raise ValueError("its answer is not a JSON object")
    return result
