"""Flag maps: per engine and version range, which flag states which lever. The data is in `flags/*.yaml`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import yaml

from inferasim_operator.emit.forms import Form, form_of
from inferasim_operator.emit.levers import Lever
from simcore.cards.layout import Engine
from simcore.cards.versions import version_key
from simcore.errors import InputError

FILES: Final = {Engine.VLLM: "vllm.yaml", Engine.SGLANG: "sglang.yaml", Engine.ATOM: "atom.yaml"}


@dataclass(frozen=True)
class FlagMap:
    """How one engine, in one version range, is started and told its levers."""

    engine: Engine
    version_range: str
    unverified: str
    """Why the flags of this range are not certain; empty when they were read at both of its ends."""
    command: tuple[str, ...]
    fixed: tuple[str, ...]
    positional: bool
    """The model path is the first argument instead of a flag's value."""
    model_flag: str
    served_name_flag: str
    revision_flag: str
    """States which revision of a hub checkpoint; empty = the engine has no such flag."""
    port_flag: str
    port: int
    sidecar_port: int
    health_path: str
    ready_path: str
    metrics_path: str
    cache_env: Mapping[str, str]
    """Cache variables and the folder that each points to."""
    multi_node: Mapping[str, tuple[str, ...]] | None
    """Arguments of `all` nodes, with `dataParallel` ranks, and of a `worker`; None = one node only."""
    one_node: str
    """Why there is one node only; empty when there may be several."""
    forms: tuple[Form, ...]
    unsupported: Mapping[str, str]
    """Levers that this range has no flag for, and why."""
    short_flags: Mapping[str, str]
    """One-dash spellings of flags that emission gives."""
    env: tuple[Mapping[str, Any], ...]
    container_ports: tuple[Mapping[str, Any], ...]

    def runtime_flags(self) -> frozenset[str]:
        """Flags that emission gives and that state no lever."""
        nodes = (argument for group in (self.multi_node or {}).values() for argument in group)
        names = {argument.split("=")[0] for argument in (*self.fixed, *nodes)}
        return frozenset(names | {self.served_name_flag, self.port_flag, self.revision_flag, self.model_flag} - {""})

    def lever_names(self) -> frozenset[str]:
        """Levers that some flag states."""
        return frozenset(name for form in self.forms for name in form.levers)


@functools.cache
def _document(engine: Engine) -> Mapping[str, Any]:
    text = resources.files("inferasim_operator.emit").joinpath("flags", FILES[engine]).read_text("utf-8")
    document: Mapping[str, Any] = yaml.safe_load(text)
    return document


@functools.cache
def flag_map(engine: Engine, version: str) -> FlagMap:
    """The map of `engine` at `version`. Raises InputError when no map was written from that version."""
    document = _document(engine)
    key = version_key(version)
    known = [f"{entry['from']} to {entry['through']}" for entry in document["ranges"]]
    for entry, name in zip(document["ranges"], known, strict=True):
        if version_key(entry["from"]) <= key <= version_key(entry["through"]):
            return _merged(engine, document, entry, name)
    raise InputError(
        "engineVersion",
        version,
        f"be a version of {engine.value} whose flags are known: {', '.join(known)}",
        "flags of other versions are not guessed",
    )


def matches(when: Mapping[str, Lever], levers: Mapping[str, Lever]) -> bool:
    """Whether `levers` has every value that `when` asks for."""
    return all(levers.get(name) == value for name, value in when.items())


def _merged(engine: Engine, document: Mapping[str, Any], entry: Mapping[str, Any], name: str) -> FlagMap:
    nodes = document.get("multiNode")
    return FlagMap(
        engine=engine,
        version_range=name,
        unverified=entry.get("unverified", ""),
        command=tuple(document["command"]),
        fixed=tuple(document["fixed"]),
        positional="positional" in document,
        model_flag=document.get("modelFlag", ""),
        served_name_flag=document["servedNameFlag"],
        revision_flag=document.get("revisionFlag", ""),
        port_flag=document["portFlag"],
        port=document["port"],
        sidecar_port=document["sidecarPort"],
        health_path=document["healthPath"],
        ready_path=document["readyPath"],
        metrics_path=document["metricsPath"],
        cache_env=document["cacheEnv"],
        one_node=document.get("oneNode", ""),
        multi_node=None if nodes is None else {group: tuple(nodes[group]) for group in nodes},
        forms=tuple(form_of(record) for record in (*document["common"], *entry.get("flags", ()))),
        unsupported={**document.get("unsupported", {}), **entry.get("unsupported", {})},
        short_flags=document.get("shortFlags", {}),
        env=(*document.get("env", ()), *entry.get("env", ())),
        container_ports=(*document.get("containerPorts", ()), *entry.get("containerPorts", ())),
    )
