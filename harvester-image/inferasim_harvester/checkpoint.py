"""The few facts of a checkpoint that the harvester needs, from its config.json where that is a local file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

MAX_CONFIG_CHARS: Final = 4 * 1024 * 1024
_PLAIN: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def read_config(path: str) -> dict[str, Any]:
    """The config.json of a checkpoint folder; empty for a hub id or an unreadable file."""
    try:
        with (Path(path) / "config.json").open(encoding="utf-8") as stream:
            found = json.loads(stream.read(MAX_CONFIG_CHARS))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def vocabulary(config: dict[str, Any]) -> int | None:
    """Size of the vocabulary."""
    for record in (config, config.get("text_config")):
        size = record.get("vocab_size") if isinstance(record, dict) else None
        if isinstance(size, int) and size > 10:
            return size
    return None


def weights_dtype(config: dict[str, Any]) -> str | None:
    """Name of the weights' format: the quantisation method where there is one, else the tensor type."""
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        method = quantization.get("quant_method")
        return str(method).lower() if method else None
    for record in (config, config.get("text_config")):
        if isinstance(record, dict):
            name = record.get("dtype") or record.get("torch_dtype")
            if isinstance(name, str):
                return _PLAIN.get(name.removeprefix("torch."), name)
    return None
