"""The engine's command line from a spec, and the settings that a command line states. The table is launch.yaml.

Arguments are a list that no shell ever sees. Settings are compared in one spelling on both sides: integers for widths,
`on`/`off` for switches, the engine's own word for names.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final

import yaml

from inferasim_harvester.spec import HarvestSpec, SpeculationPart
from simcore.cards.layout import Engine
from simcore.cards.versions import version_key
from simcore.errors import InputError

Settings = dict[str, object]
_SGLANG_METHODS: Final = {"MTP": "NEXTN", "EAGLE": "EAGLE", "EAGLE3": "EAGLE3"}


@functools.cache
def _document() -> dict[str, Any]:
    text = resources.files("inferasim_harvester").joinpath("launch.yaml").read_text("utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def table(engine: Engine, version: str) -> Mapping[str, Any]:
    """The launch table of an engine's version. Raises InputError for one whose flags were not read."""
    entry = _document()[engine.value]
    key = version_key(version, "engine.version")
    for span in entry["ranges"]:
        if version_key(span["from"]) <= key <= version_key(span["through"]):
            return {**entry, "settings": {**entry["settings"], **span.get("settings", {})}}
    known = ", ".join(f"{span['from']} to {span['through']}" for span in entry["ranges"])
    raise InputError("engine.version", version, f"be a version whose flags are known: {known}", "flags are not guessed")


def asked_settings(spec: HarvestSpec) -> Settings:
    """The settings that the spec asks for, by name."""
    known = table(spec.engine.name, spec.engine.version)["settings"]
    signature = spec.signature
    wishes: Settings = {
        "tensorParallel": spec.layout.tensor_parallel,
        "pipelineParallel": spec.layout.pipeline_parallel,
        "attentionDataParallel": spec.attention_ranks,
        "expertParallel": spec.layout.expert_parallel,
        "graphCapture": "on" if signature.graph_capture == "Enabled" else "off",
        "prefixCaching": "off",
        "speculation": "off" if signature.speculation is None else "on",
        "randomWeights": "on" if spec.model.weights == "Dummy" else "off",
    }
    for name, word in (
        ("kvDtype", signature.kv_dtype),
        ("attentionBackend", signature.attention_backend),
        ("moeBackend", signature.moe_backend),
    ):
        if word is not None:
            wishes[name] = word
    asked: Settings = {}
    for name, value in wishes.items():
        rule = known.get(name)
        if rule is None:
            if value not in (1, "on"):
                raise InputError(f"signature.{name}", value, f"have a known flag in {spec.engine.name.value}")
            continue
        if rule["form"] == "choice":
            value = _chosen(name, str(value), rule)
        elif rule["form"] == "switch":
            value = "on" if value != 1 else "off"
        asked[name] = value
    return asked


def command(spec: HarvestSpec, *, port: int) -> list[str]:
    """The engine's argument vector. Raises InputError when a choice has no known flag."""
    rules = table(spec.engine.name, spec.engine.version)
    argv = list(rules["command"])
    argv += [spec.model.path] if rules.get("positionalModel") else [f"{rules['model']}={spec.model.path}"]
    argv += [f"{rules['servedName']}={spec.model.name}", rules["host"], f"{rules['port']}={port}", *rules["always"]]
    if spec.model.revision is not None:
        if "revision" not in rules:
            raise InputError("model.revision", spec.model.revision, f"be absent for {spec.engine.name.value}")
        argv.append(f"{rules['revision']}={spec.model.revision}")
    if spec.model.weights == "Dummy":
        argv += rules["dummyWeights"]
    for name, value in asked_settings(spec).items():
        argv += _flags(rules["settings"][name], value)
    if spec.signature.speculation is not None:
        argv += _speculation(rules["speculation"], spec.signature.speculation)
    _refuse_overrides(argv, spec.engine.extra_args, rules)
    return [*argv, *spec.engine.extra_args]


def decode_only_arguments(spec: HarvestSpec) -> list[str]:
    """What makes the engine decode without having computed the prompt. Raises InputError where it cannot."""
    rules = table(spec.engine.name, spec.engine.version)
    if "decodeOnly" not in rules:
        raise InputError("sweeps.decodeOnly", spec.engine.name.value, "be vLLM's")
    return list(rules["decodeOnly"])


def routing_recorder(spec: HarvestSpec, folder: str) -> tuple[list[str], dict[str, str]]:
    """(arguments, variables) that make the engine record its router's choices. Raises InputError where it cannot."""
    rules = table(spec.engine.name, spec.engine.version).get("routing")
    if rules is None:
        raise InputError("sweeps.expertRouting", spec.engine.name.value, "be SGLang's")
    return list(rules["arguments"]), {rules["folderVariable"]: folder}


def environment(spec: HarvestSpec) -> dict[str, str]:
    """Variables that the harvester itself needs the engine to have."""
    forced = spec.signature.speculation and spec.signature.speculation.forced_acceptance_length
    if spec.engine.name is Engine.VLLM:
        # Opens /server_info, the resolved configuration; the server listens on loopback only.
        return {"VLLM_SERVER_DEV_MODE": "1"}
    if spec.engine.name is Engine.SGLANG and forced:
        return {"SGLANG_SIMULATE_ACC_LEN": f"{forced:g}"}
    return {}


def stated_settings(engine: Engine, version: str, argv: Sequence[str]) -> Settings:
    """What a command line states, defaults included where absence has a meaning."""
    found: Settings = {}
    for name, rule in table(engine, version)["settings"].items():
        value = _value(argv, rule["flags"])
        form = rule["form"]
        if form == "integer":
            found[name] = int(value) if isinstance(value, str) and value.isdigit() else 1
            if any(flag not in argv for flag in rule.get("also", ())):
                found[name] = 1
        elif form in ("switch", "stated"):
            found[name] = "on" if value is not None else "off"
        elif form in ("absent", "given"):
            found[name] = "off" if value is not None else "on"
        elif isinstance(value, str):
            found[name] = value
    return found


def _value(argv: Sequence[str], flags: Sequence[str]) -> str | bool | None:
    """The value of the last of `flags` in `argv`: text, True for a flag alone, None when absent."""
    found: str | bool | None = None
    for index, token in enumerate(argv):
        if token in flags:
            following = argv[index + 1] if index + 1 < len(argv) else "-"
            found = True if following.startswith("-") else following
        elif token.split("=", 1)[0] in flags:
            found = token.split("=", 1)[1]
    return found


def _flags(rule: Mapping[str, Any], value: object) -> list[str]:
    flag, form = rule["flags"][0], rule["form"]
    if form == "integer":
        return [f"{flag}={value}", *rule.get("also", ())] if value != 1 else []
    if form == "switch":
        return [flag] if value == "on" else []
    if form == "absent":
        return [flag] if value == "off" else []
    return [] if form in ("given", "stated") else [f"{flag}={value}"]


def _chosen(name: str, word: str, rule: Mapping[str, Any]) -> str:
    values = rule["values"]
    if word.lower() not in values:
        raise InputError(f"signature.{name}", word, "be one of " + ", ".join(sorted(values)))
    return str(values[word.lower()])


def _speculation(style: str, given: SpeculationPart) -> list[str]:
    """Flags of speculative decoding; a forced acceptance uses the engine's own test sampler."""
    forced = given.forced_acceptance_length
    if style == "json":
        record: dict[str, Any] = {"method": given.method.lower(), "num_speculative_tokens": given.draft_tokens}
        if given.draft_model is not None:
            record["model"] = given.draft_model
        if forced is not None:
            record |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": forced}
        return [f"--speculative-config={json.dumps(record, sort_keys=True)}"]
    draft = [] if given.draft_model is None else [given.draft_model]
    if style == "atom":
        if given.method not in ("MTP", "EAGLE3"):
            raise InputError("signature.speculation.method", given.method, "be MTP or EAGLE3 for ATOM")
        flags = [f"--method={given.method.lower()}", f"--num-speculative-tokens={given.draft_tokens}"]
        flags += [f"--draft-model={path}" for path in draft]
        return flags + ([] if forced is None else [f"--spec-decode-acceptance-length={forced:g}"])
    if given.method not in _SGLANG_METHODS:
        raise InputError("signature.speculation.method", given.method, "be MTP, EAGLE or EAGLE3 for SGLang")
    flags = [f"--speculative-algorithm={_SGLANG_METHODS[given.method]}"]
    flags += [f"--speculative-draft-model-path={path}" for path in draft]
    # A chain of k drafts: k steps of width 1, and k + 1 tokens to verify.
    k = given.draft_tokens
    return [
        *flags,
        f"--speculative-num-steps={k}",
        "--speculative-eagle-topk=1",
        f"--speculative-num-draft-tokens={k + 1}",
    ]


def _refuse_overrides(argv: Sequence[str], extra: Sequence[str], rules: Mapping[str, Any]) -> None:
    """An extra argument may not restate what the spec decides: the anchor would be labelled wrongly (case E10)."""
    owned = {token.split("=", 1)[0] for token in argv if token.startswith("-")}
    owned |= {flag.split("=", 1)[0] for rule in rules["settings"].values() for flag in rule["flags"]}
    owned |= {*rules["relabels"], *rules["dummyWeights"]}
    owned = {_plain(flag) for flag in owned}
    for index, token in enumerate(extra):
        following = extra[index + 1] if index + 1 < len(extra) else ""
        said = {token.split("=", 1)[0], token, f"{token}={following}"}
        if token.startswith("-") and owned & {_plain(flag) for flag in said}:
            raise InputError("engine.extraArgs", token, "not restate what the spec decides")


def _plain(flag: str) -> str:
    """One spelling of a flag that engines take with dashes or underscores."""
    name, equals, value = flag.partition("=")
    return name.replace("_", "-") + equals + value
