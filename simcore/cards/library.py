"""The built-in cards by name: models and accelerators, read once from `simcore/data`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.formats import canonical_format
from simcore.cards.hf import model_card_from_config
from simcore.cards.model import ModelCard
from simcore.data import loader
from simcore.errors import FormatError, UnknownNameError

_ACCELERATOR_FIELDS = {
    "name", "architecture", "hbm_bytes", "hbm_bytes_per_s", "peak_flop_per_s", "gpus_per_node", "link_bytes_per_s",
    "nic_bytes_per_s", "host_link_bytes_per_s", "image_flavour", "fp8_format", "sources",
}  # fmt: skip
_ACCELERATOR_OPTIONS = {"aliases", "device_ids", "vf_device_ids", "validation_only", "assumed"}
_TUNING_WORDS = frozenset(
    ("instruct", "chat", "base", "thinking", "preview", "exp", "terminus", "speciale", "it", "hf", "kv")
)
_RELEASE = re.compile(r"\d{4}")
_NO_SOURCE_NEEDED = {"name", "sources", "source", "aliases", "validation_only", "assumed"}


@dataclass(frozen=True)
class _Entry:
    """Where a model's figures come from; variants share the base's config and change its quantisation."""

    name: str
    config: Mapping[str, Any]
    source: str
    assumed: tuple[str, ...]
    releases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What a release date in the name changes of the config: positions, never a shape."""


def _key(name: str) -> str:
    """Names differ in case, separators and owner prefix only: `deepseek-ai/DeepSeek-V3` is `deepseek-v3`."""
    return str(name).strip().rsplit("/", maxsplit=1)[-1].lower().replace("_", "-").replace(" ", "-")


def _shape_key(name: str) -> str:
    """The key without release dates and tuning tags, which change no shape: `…-Instruct-2507-FP8` is `…-FP8`."""
    words = _key(name).split("-")
    return "-".join(word for word in words if word not in _TUNING_WORDS and not _RELEASE.fullmatch(word))


@cache
def _find(name: str) -> _Entry | None:
    index = _model_index()[0]
    near = index.get(_key(name)) or index.get(_shape_key(name))
    if near is not None:
        return near
    alike = {entry.name: entry for key, entry in index.items() if _shape_key(key) == _shape_key(name)}
    return next(iter(alike.values())) if len(alike) == 1 else None


def known_model(name: str) -> str | None:
    """The canonical name of the built-in card that `name` means, or None."""
    entry = _find(name)
    return None if entry is None else entry.name


@cache
def _model_index() -> tuple[Mapping[str, _Entry], tuple[str, ...]]:
    """(entry by key, canonical names)."""
    index: dict[str, _Entry] = {}
    names: list[str] = []

    def put(names_and_aliases: list[str], entry: _Entry, where: str) -> None:
        names.append(entry.name)
        for alias in names_and_aliases:
            if _key(alias) in index and index[_key(alias)] is not entry:
                raise FormatError(where, None, "aliases", alias, "be unique among all cards")
            index[_key(alias)] = entry

    for where, text in loader.data_files("models"):
        item = loader.record(
            loader.parse_yaml(text, where),
            where,
            required={"name", "config"},
            optional={"aliases", "variants", "assumed", "releases"},
        )
        releases = _releases(item.get("releases", []), where)
        base = _Entry(item["name"], item["config"], item["source"], tuple(item.get("assumed", ())), releases)
        put([item["name"], *item.get("aliases", [])], base, where)
        for raw in item.get("variants", []):
            variant = loader.record(raw, where, required={"name", "config"}, optional={"aliases", "assumed"})
            config = {**item["config"], **variant["config"]}
            notes = base.assumed + tuple(variant.get("assumed", ()))
            entry = _Entry(variant["name"], config, variant["source"], notes, releases)
            put([variant["name"], *variant.get("aliases", [])], entry, where)
    return MappingProxyType(index), tuple(sorted(names))


def _releases(raw: list[Any], where: str) -> dict[str, Mapping[str, Any]]:
    records = [loader.record(item, where, required={"release", "config"}) for item in raw]
    return {item["release"]: item["config"] for item in records}


@cache
def _unverified() -> Mapping[str, str]:
    """Models that people ask for and whose dimensions nobody could verify: key to reason."""
    records = [
        loader.record(item, "unverified_models.yaml", required={"name", "reason"})
        for item in loader.read_data("unverified_models.yaml")
    ]
    return {_key(item["name"]): item["reason"] for item in records}


def known_models() -> tuple[str, ...]:
    """Canonical names of the built-in model cards, sorted."""
    return _model_index()[1]


@cache
def load_model_card(name: str) -> ModelCard:
    """The built-in card called `name` (any alias or case; release dates and tuning tags apart).

    Raises UnknownNameError with the nearest names.
    """
    entry = _find(name)
    if entry is None:
        error = UnknownNameError("model.name", str(name), _model_index()[1])
        reason = _unverified().get(_key(name))
        if reason is not None:
            error.args = (f"`model.name` {name!r} has no built-in card: {reason}; give its config.json instead",)
        raise error
    released = next((entry.releases[word] for word in _key(name).split("-") if word in entry.releases), {})
    card = model_card_from_config({**entry.config, **released}, entry.name, source=entry.source)
    return replace(card, assumed=card.assumed + entry.assumed)


def with_weights_format(card: ModelCard, dtype: str, field: str = "weights_dtype") -> ModelCard:
    """`card` as if its linear layers were stored as `dtype` (`fp4` is NVFP4); attention stays unquantised under 4 bit.

    For corpora that name a model and a weight format apart. Raises UnknownNameError.
    """
    form = canonical_format(dtype, field)
    old = card.dtypes
    if form in (old.experts, old.weights) and (not card.is_moe or form == old.experts):
        return card
    narrow = form in ("mxfp4", "nvfp4", "int4", "mxfp6")
    base = old.embeddings
    dtypes = replace(
        old,
        weights=form,
        experts=form,
        shared_experts=form,
        attention=base if narrow else form,
        activations=form if form == "fp8" else base,
        block=None,
        group=128 if form == "int4" else 0,
        head=base,
    )
    note = f"weights stored as {form}" + (", attention left in " + base if narrow else "") + ", no block scales"
    return replace(card, dtypes=dtypes, assumed=(*card.assumed, note))


@cache
def _accelerator_index() -> tuple[Mapping[str, AcceleratorCard], tuple[str, ...]]:
    index: dict[str, AcceleratorCard] = {}
    names: list[str] = []
    for where, text in loader.data_files("accelerators"):
        item = loader.record(
            loader.parse_yaml(text, where), where, required=_ACCELERATOR_FIELDS, optional=_ACCELERATOR_OPTIONS
        )
        missing = sorted(set(item) - _NO_SOURCE_NEEDED - set(item["sources"]))
        if missing:
            raise FormatError(where, None, f"sources.{missing[0]}", None, "be given")
        card = AcceleratorCard(
            **{name: item[name] for name in _ACCELERATOR_FIELDS - {"peak_flop_per_s", "sources"}},
            peak_flop_per_s=MappingProxyType(dict(item["peak_flop_per_s"])),
            device_ids=tuple(item.get("device_ids", ())),
            vf_device_ids=tuple(item.get("vf_device_ids", ())),
            validation_only=item.get("validation_only", False),
            assumed=tuple(item.get("assumed", ())),
            sources=MappingProxyType(dict(item["sources"])),
        )
        names.append(card.name)
        for alias in (card.name, *item.get("aliases", [])):
            if index.get(_key(alias), card) is not card:
                raise FormatError(where, None, "aliases", alias, "be unique among all cards")
            index[_key(alias)] = card
    return MappingProxyType(index), tuple(sorted(names))


def known_accelerators(*, for_planning: bool = False) -> tuple[str, ...]:
    """Names of the accelerator cards, sorted; `for_planning` leaves out those kept for validation only."""
    index, names = _accelerator_index()
    return tuple(name for name in names if not (for_planning and index[_key(name)].validation_only))


def load_accelerator_card(name: str) -> AcceleratorCard:
    """The accelerator called `name` (any alias or case). Raises UnknownNameError with the nearest names."""
    index, names = _accelerator_index()
    if _key(name) not in index:
        raise UnknownNameError("accelerator", str(name), names)
    return index[_key(name)]


def accelerator_by_device_id(device_id: str) -> tuple[AcceleratorCard, bool] | None:
    """(card, is a virtual function) of a PCI device id as node labels show it, or None."""
    wanted = str(device_id).strip().lower().removeprefix("0x")
    index, names = _accelerator_index()
    for card in (index[_key(name)] for name in names):
        if wanted in card.device_ids:
            return card, False
        if wanted in card.vf_device_ids:
            return card, True
    return None
