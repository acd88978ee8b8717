"""The command line of an engine: rendered from a configuration, and read back into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inferasim_operator.emit.configuration import Configuration, Role
from inferasim_operator.emit.flagmap import FlagMap, flag_map
from inferasim_operator.emit.levers import Levers, levers_of
from simcore.cards.layout import Engine, Layout, resolve
from simcore.errors import InputError


def render_args(configuration: Configuration, role: Role, *, model_path: str, port: int) -> list[str]:
    """The engine's arguments for one pool, each flag once. Raises InputError for a lever without a flag."""
    flags = flag_map(configuration.engine, configuration.engine_version)
    levers = levers_of(configuration, role)
    check_product_rule(configuration, role)
    # A chunk as large as the token budget is what an engine without a chunk flag does anyway.
    if "chunkTokens" in flags.unsupported and levers.get("chunkTokens") == levers["maxBatchedTokens"]:
        del levers["chunkTokens"]
    for name in levers:
        if name in flags.unsupported or name not in flags.lever_names():
            why = flags.unsupported.get(name, "no flag is known")
            raise InputError(
                name, levers[name], f"not be set for {configuration.engine.value} {flags.version_range}", why
            )
    arguments = [model_path] if flags.positional else [f"{flags.model_flag}={model_path}"]
    arguments += [f"{flags.served_name_flag}={configuration.model.name}", *flags.fixed, f"{flags.port_flag}={port}"]
    arguments += _revision(configuration, flags)
    for form in flags.forms:
        arguments += form.render({**levers, "port": port})
    arguments += configuration.extra_args or ()
    _refuse_repeats(arguments, flags)
    return arguments


def parse_args(engine: Engine, version: str, arguments: Sequence[str], role: Role = Role.COLOCATED) -> Levers:
    """The levers that a command line states. Raises InputError for a flag that is unknown, repeated or malformed."""
    flags = flag_map(engine, version)
    tokens = list(arguments[1:] if flags.positional else arguments)
    given: dict[str, tuple[str, ...]] = {}
    for token in tokens:
        if token.startswith("--"):
            name, equals, value = token.partition("=")
            if name in given:
                raise InputError(name, token, "be given once")
            given[name] = (value,) if equals else ()
        elif given:
            last = next(reversed(given))
            given[last] += (token,)
        else:
            raise InputError("arguments", token, "begin with a flag")
    known = flags.runtime_flags() | {flag for form in flags.forms for flag in form.flags}
    for name in given:
        if name not in known:
            raise InputError("arguments", name, f"be a flag of {engine.value} {flags.version_range}")
    levers: Levers = {} if role is Role.COLOCATED else {"disaggregation.role": role.value}
    for form in flags.forms:
        form.parse(given, levers)
    levers.pop("port", None)
    return levers


def check_product_rule(configuration: Configuration, role: Role) -> None:
    """dp·tp = moe_tp·moe_ep per stage, and EP no wider than the ranks it lives on (case A10). Raises InputError."""
    layout = configuration.canonical_layout(role)
    widths = configuration.resolved(role)
    if not configuration.is_moe:
        if layout.expert_parallel > 1:
            raise InputError("layout.expertParallel", layout.expert_parallel, "be 1 for a dense model")
        return
    ranks = _moe_ranks(layout, configuration.engine)
    if layout.expert_parallel > ranks or widths.moe_tp * widths.moe_ep != ranks:
        raise InputError(
            "layout.expertParallel", layout.expert_parallel, f"divide the {ranks} ranks of the expert layers"
        )


def _revision(configuration: Configuration, flags: FlagMap) -> list[str]:
    hub = configuration.model.source.hub
    if hub is None or hub.revision is None:
        return []
    if not flags.revision_flag:
        raise InputError("model.source.hub.revision", hub.revision, f"not be set for {flags.engine.value}")
    return [f"{flags.revision_flag}={hub.revision}"]


def _moe_ranks(layout: Layout, engine: Engine) -> int:
    without_experts = Layout(**{**layout.__dict__, "expert_parallel": 1})
    return resolve(without_experts, engine, is_moe=True).moe_tp


def _refuse_repeats(arguments: Sequence[str], flags: FlagMap) -> None:
    """Engines take a flag under several spellings, and the last one wins: `_` for `-`, a beginning, `--no-`, `-tp`."""
    stated = [argument.split("=")[0] for argument in arguments if argument.startswith("-")]
    own = Counter(_canonical(flags.short_flags.get(name, name)) for name in stated)
    known = {_canonical(name) for form in flags.forms for name in form.flags} | {
        _canonical(name) for name in flags.runtime_flags()
    }
    for name in stated:
        flag = _canonical(flags.short_flags.get(name, name))
        is_beginning = flag not in known and any(other != flag and other.startswith(flag) for other in own)
        if own[flag] > 1 or is_beginning:
            raise InputError(
                "extraArgs", name, f"not repeat a flag that {flags.engine.value} gets from the configuration"
            )


def _canonical(name: str) -> str:
    name = name.replace("_", "-")
    return f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else name
