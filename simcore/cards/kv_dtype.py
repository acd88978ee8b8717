"""Names of KV cache formats as the engines' flags spell them, and what `auto` means to an engine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from simcore.cards.formats import canonical_format
from simcore.cards.layout import Engine
from simcore.cards.model import ModelCard
from simcore.data import loader

DS_MLA = "fp8_ds_mla"
PER_TOKEN_HEAD: Mapping[str, str] = {"fp8_per_token_head": "fp8", "int8_per_token_head": "int8"}
_E4M3 = ("fp8", "e4m3", "fp8_e4m3", "fp8_e4m3fn", "fp8_e4m3fnuz", "float8_e4m3fn", "float8_e4m3fnuz")
_E5M2 = ("fp8_e5m2", "float8_e5m2")


@cache
def engines_that_follow(stated_by: str) -> tuple[str, ...]:
    """The engines that take a KV format stated by `stated_by` (modelopt, compressed-tensors) for `auto`."""
    records = [
        loader.record(item, "kv_auto.yaml", required={"engine", "follows"}) for item in loader.read_data("kv_auto.yaml")
    ]
    return tuple(item["engine"] for item in records if stated_by in item["follows"])


def stated_kv_dtype(card: ModelCard, engine: Engine | None) -> str:
    """The KV format that `engine` (any, when None) runs `auto` with because the checkpoint states it; empty = none."""
    followed = engine is None or engine.value in engines_that_follow(card.dtypes.kv_stated_by)
    return card.dtypes.kv if followed else ""


def kv_dtype_name(dtype: str | None, *, card: ModelCard, engine: Engine | None = None) -> str:
    """The KV format that a model runs with: `fp8_e4m3` and `fp8` are the same (public case A24), `fp8_e5m2` is another.

    None or `auto` is what the checkpoint states, where `engine` (any, when None) takes that for `auto`, else the
    model's unquantised format. Raises UnknownNameError.
    """
    text = "" if dtype is None else str(dtype).strip().lower()
    if text in ("", "auto"):
        return stated_kv_dtype(card, engine) or canonical_format(card.dtypes.embeddings)
    return canonical_kv_dtype(text)


def canonical_kv_dtype(dtype: str, field: str = "kvDtype") -> str:
    """The one name of a KV format that is not `auto`. Raises UnknownNameError."""
    text = dtype.strip().lower()
    if text in _E4M3:
        return "fp8"
    if text in _E5M2:
        return "fp8_e5m2"
    if text == DS_MLA or text in PER_TOKEN_HEAD:
        return text
    return canonical_format(text, field)


def kv_storage(dtype: str) -> str:
    """The storage format of the values of a KV format: what its bytes are priced by, scales apart."""
    name = canonical_kv_dtype(dtype)
    return PER_TOKEN_HEAD.get(name, "fp8" if is_fp8_kv(name) else name)


def is_fp8_kv(name: str) -> bool:
    """Does a format named by `kv_dtype_name` store FP8 values?"""
    return name.startswith("fp8")
