"""Storage formats of a checkpoint from its `quantization_config`: which component is stored how."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simcore.cards.formats import canonical_format
from simcore.cards.hf_fields import Fields, check_integer
from simcore.cards.kv_dtype import engines_that_follow
from simcore.cards.model import AttentionKind, Dtypes
from simcore.errors import InputError

_LARGEST_PATTERN = 300
_LARGEST_LIST = 20_000
_UNQUANTISED_BITS = 16
_MODELOPT_GROUP = 128
"""Elements per scale of ModelOpt's AWQ where the config does not say."""


@dataclass(frozen=True)
class _Scheme:
    """How one group of modules is stored."""

    dtype: str
    group: int = 0
    block: tuple[int, int] | None = None
    zero_points: bool = False


@dataclass(frozen=True)
class LayerSample:
    """A layer that speaks for its group when module names are looked up."""

    index: int
    attention: AttentionKind
    is_moe: bool


def dtypes_from_config(fields: Fields, base: str, samples: Sequence[LayerSample]) -> tuple[Dtypes, list[str]]:
    """Dtypes of the checkpoint and what had to be assumed.

    `fields` is the config that holds `quantization_config`; `base` the unquantised format; `samples` a few layers of
    each group, whose module names are looked up in ignore and target lists. Raises InputError for an unknown method.
    """
    quant = fields.section("quantization_config", "quant_config")
    components = ("weights", "experts", "shared_experts", "attention")
    if quant is None or not quant.values:
        return Dtypes(base, base, base, base, base, base, base), []
    if "quant_method" not in quant and "quantization" in quant:  # ModelOpt's own file, hf_quant_config.json
        quant = quant.section("quantization") or quant
    method = quant.text("quant_method", default="modelopt" if "quant_algo" in quant else "").lower().replace("_", "-")
    readers: dict[str, Callable[[Fields], Callable[[str], _Scheme | None]]] = {
        "fp8": _fp8, "fbgemm-fp8": _fp8, "mxfp4": _mxfp4, "compressed-tensors": _compressed, "modelopt": _modelopt,
        "modelopt-fp4": _modelopt, "modelopt-mixed": _modelopt, "ptpc-fp8": _fp8, "awq": _integer, "gptq": _integer,
        "awq-marlin": _integer, "gptq-marlin": _integer, "auto-round": _integer, "quark": _quark,
    }  # fmt: skip
    if method not in readers:
        must = f"be one of {', '.join(sorted(readers))}"
        instead = (
            "how this one stores weights is not modelled: leave quantization_config out and give the "
            "weightBytesPerGpu that the engine reports"
        )
        raise InputError(f"{quant.path}.quant_method", method, must, instead)
    _refuse_sparse(quant)
    scheme_of = readers[method](quant)
    chosen: dict[str, _Scheme] = {}
    mixed: list[str] = []
    for component in components:
        votes = [scheme_of(f"model.layers.{index}.{name}") for index, name in _modules(fields, component, samples)]
        found = [vote for vote in votes if vote is not None]
        # What most of the sampled modules say stands for the component.
        if len(set(votes)) > 1:
            mixed.append(component)
        if found and 2 * len(found) >= len(votes):
            chosen[component] = max(found, key=found.count)
    expert_dtype = fields.text("expert_dtype")
    if expert_dtype:  # DeepSeek-V4: FP8 outside, OCP MXFP4 experts
        chosen["experts"] = _Scheme("mxfp4" if expert_dtype == "fp4" else canonical_format(expert_dtype))
    stored = {name: chosen[name].dtype if name in chosen else base for name in components}
    blocks = {scheme.block for scheme in chosen.values() if scheme.block is not None}
    groups = {scheme.group for scheme in chosen.values() if scheme.group}
    assumed = [f"{name} are stored in several formats: the most common stands for all" for name in mixed]
    if len(blocks) > 1 or len(groups) > 1:
        assumed.append("quantization_config mixes block or group sizes: the largest stands for all")
    stated = _stated_kv(quant)
    stated_by = ("modelopt" if method.startswith("modelopt") else method) if stated else ""
    if stated:
        assumed.append(
            f"the checkpoint states KV as {stated}: a kvDtype `auto` means that on "
            f"{', '.join(engines_that_follow(stated_by)) or 'no engine'}, elsewhere the unquantised format"
        )
    if method == "quark" and any(
        part.find(key)[1]
        for part in (quant, quant.section("export") or Fields({}))
        for key in ("kv_cache_group", "kv_cache_quant_config")
    ):
        assumed.append("the checkpoint carries KV scales (Quark): kvDtype fp8 uses them, `auto` does not")
    head = scheme_of("lm_head") if method.startswith("modelopt") or quant.flag("lm_head") else None
    return (
        Dtypes(
            stored["weights"], stored["experts"], stored["shared_experts"], attention=stored["attention"],
            embeddings=base, head=base if head is None else head.dtype,
            activations=_activation_format(quant, chosen, base),
            block=max(blocks) if blocks else None, group=max(groups, default=0),
            zero_points=any(scheme.zero_points for scheme in chosen.values()), kv=stated, kv_stated_by=stated_by,
        ),
        assumed,
    )  # fmt: skip


def _modules(fields: Fields, component: str, samples: Sequence[LayerSample]) -> list[tuple[int, str]]:
    """(layer, module name) pairs that stand for a component, in the naming of the model's family."""
    family = fields.text("model_type")
    is_llama4 = family.startswith("llama4")
    mlp = "feed_forward" if is_llama4 else "mlp"
    routed = "block_sparse_moe" if family.startswith(("minimax_m2", "mixtral")) else mlp
    singular = any(name in fields for name in ("shared_expert_intermediate_size", "share_expert_dim"))
    shared = f"{mlp}.shared_expert" if singular or is_llama4 else f"{mlp}.shared_experts"
    shared = "share_expert" if "share_expert_dim" in fields else shared
    linear = "self_attn.o_proj" if "linear_attn_config" in fields else "linear_attn.out_proj"
    if component == "experts":
        return [(sample.index, f"{routed}.experts.0.gate_proj") for sample in samples if sample.is_moe]
    if component == "shared_experts":
        return [(sample.index, f"{shared}.gate_proj") for sample in samples if sample.is_moe]
    if component == "weights":
        dense = [sample.index for sample in samples if not sample.is_moe] or [samples[0].index]
        return [(index, f"{mlp}.gate_proj") for index in dense]
    names = {
        AttentionKind.LINEAR: (linear,),
        AttentionKind.MLA: ("self_attn.q_b_proj", "self_attn.o_proj"),
        AttentionKind.GQA: ("self_attn.q_proj", "self_attn.o_proj"),
    }
    return [(sample.index, name) for sample in samples for name in names[sample.attention]]


def _refuse_sparse(quant: Fields) -> None:
    """2:4 sparse checkpoints store half of their weights, and indexes."""
    sparsity = quant.section("sparsity_config")
    for field, form in (("sparsity_config.format", "" if sparsity is None else sparsity.text("format")),
                        ("format", quant.text("format"))):  # fmt: skip
        if "sparse" in form or form == "marlin-24":
            raise InputError(f"{quant.path}.{field}", form, "be dense", "2:4 sparse weights are not modelled")


def _stated_kv(quant: Fields) -> str:
    """The KV format a checkpoint carries scales for (compressed-tensors scheme, ModelOpt algorithm), or empty."""
    algorithm = quant.text("kv_cache_quant_algo").upper()
    if algorithm:
        return "nvfp4" if "FP4" in algorithm else "fp8" if "FP8" in algorithm else ""
    scheme = quant.section("kv_cache_scheme")
    return "" if scheme is None else _number_scheme(scheme).dtype


def _activation_format(quant: Fields, chosen: dict[str, _Scheme], base: str) -> str:
    """FP8 checkpoints run FP8 activations; weight-only and mixed formats run the base format."""
    groups = quant.section("config_groups")
    for name in () if groups is None else groups.values:
        if groups is not None and "input_activations" not in (groups.section(name) or Fields({})):
            return base
    active = {scheme.dtype for scheme in chosen.values()}
    if quant.text("quant_method") == "mxfp4" or "W4A16" in quant.text("quant_algo"):
        return base
    if active == {"fp8", "mxfp4"}:
        return "fp8"
    only = active.pop() if len(active) == 1 else base
    return only if only in ("fp8", "mxfp8", "mxfp4", "nvfp4") else base


def _ignored(quant: Fields) -> Callable[[str], bool]:
    names = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "exclude", "exclude_layers")
    patterns: list[str] = []
    for name in names:
        patterns += quant.strings(name) or []
    if len(patterns) > _LARGEST_LIST:
        raise InputError(quant.path, f"{len(patterns)} ignored modules", f"list at most {_LARGEST_LIST}")
    exact = frozenset(pattern for pattern in patterns if not _has_wildcard(pattern))
    matchers = [_matcher(pattern, quant.path) for pattern in patterns if _has_wildcard(pattern)]
    is_substring = quant.text("quant_method").lower().startswith("awq")  # as AutoAWQ and the engines look it up

    def is_ignored(module: str) -> bool:
        if is_substring and any(pattern in f"{module}." for pattern in exact):
            return True
        # A listed name covers itself and everything below it; it may leave out the leading `model.`.
        return any(not _spans(name).isdisjoint(exact) for name in _aliases(module)) or any(
            match(module) for match in matchers
        )

    return is_ignored


def _spans(module: str) -> set[str]:
    parts = module.split(".")
    return {".".join(parts[a:b]) for a in range(len(parts)) for b in range(a + 1, len(parts) + 1)}


def _aliases(module: str) -> tuple[str, ...]:
    """A language model's module by the names that it has inside multimodal checkpoints too."""
    bare = module.removeprefix("model.")
    return module, bare, f"model.language_model.{bare}", f"language_model.model.{bare}", f"thinker.model.{bare}"


def _has_wildcard(pattern: str) -> bool:
    return pattern.startswith("re:") or any(mark in pattern for mark in "*?[")


def _matcher(pattern: str, path: str) -> Callable[[str], bool]:
    """A matcher for `re:…` or a shell pattern; patterns that could run for ever are refused."""
    text = pattern.removeprefix("re:")
    if len(text) > _LARGEST_PATTERN or text.count("*") + text.count("+") > 4 or re.search(r"\)[*+{]", text):
        raise InputError(path, pattern, "be a simple pattern", "at most four wildcards and no repeated groups")
    if pattern.startswith("re:"):
        try:
            compiled = re.compile(text)
        except re.error as error:
            raise InputError(path, pattern, "be a valid regular expression", str(error)) from error
        return lambda module: any(compiled.match(name) is not None for name in _aliases(module))
    globs = [re.compile(fnmatch.translate(text)), re.compile(fnmatch.translate(text + ".*"))]
    return lambda module: any(glob.match(name) is not None for name in _aliases(module) for glob in globs)


def _block(quant: Fields) -> tuple[int, int] | None:
    sizes = quant.integers("weight_block_size", minimum=1)
    if sizes is None:
        return None
    if len(sizes) != 2:
        raise InputError(f"{quant.path}.weight_block_size", sizes, "have two entries")
    return sizes[0], sizes[1]


def _fp8(quant: Fields) -> Callable[[str], _Scheme | None]:
    ignored, scheme = _ignored(quant), _Scheme("fp8", block=_block(quant))
    return lambda module: None if ignored(module) else scheme


def _mxfp4(quant: Fields) -> Callable[[str], _Scheme | None]:
    """gpt-oss: only routed experts are stored as MXFP4."""
    ignored = _ignored(quant)
    return lambda module: _Scheme("mxfp4") if "experts" in module and not ignored(module) else None


def _integer(quant: Fields) -> Callable[[str], _Scheme | None]:
    """AWQ, GPTQ and AutoRound: one scheme, overridden per module by GPTQModel's `dynamic`, AutoRound's `extra_config`.

    Raises InputError.
    """
    ignored, scheme = _ignored(quant), _packed_scheme(quant, None)
    special: list[tuple[Callable[[str], bool], _Scheme | None]] = []
    for key in ("dynamic", "extra_config"):
        overrides = quant.section(key) or Fields({})
        if len(overrides.values) > _LARGEST_LIST:
            raise InputError(f"{quant.path}.{key}", len(overrides.values), f"hold at most {_LARGEST_LIST} entries")
        for pattern in overrides.values:
            text = pattern.removeprefix("+:").removeprefix("-:")
            is_regex = key == "dynamic" or _has_wildcard(text)
            match = _matcher(f"re:{text.removeprefix('re:')}", f"{quant.path}.{key}") if is_regex else _named(text)
            own = overrides.section(pattern) or Fields({})
            special.append((match, None if pattern.startswith("-:") else _packed_scheme(own, quant)))

    def scheme_of(module: str) -> _Scheme | None:
        if ignored(module):
            return None
        return next((found for match, found in special if match(module)), scheme)

    return scheme_of


def _named(name: str) -> Callable[[str], bool]:
    return lambda module: name in _aliases(module)


def _packed_scheme(quant: Fields, outer: Fields | None) -> _Scheme | None:
    """Scheme of a packed integer record; what it leaves out is the outer record's. None = not quantised (16 bits)."""
    base = None if outer is None else _packed_scheme(outer, None)
    _, size = quant.find("group_size", "q_group_size")
    group = check_integer(f"{quant.path}.group_size", size, -1) if size is not None else base.group if base else 0
    given = quant.find("bits", "w_bit")[1]
    if given is None and base is not None and "data_type" not in quant:
        return replace(base, group=max(group, 0))
    bits = quant.integer("bits", "w_bit", default=4, minimum=1)
    if bits == _UNQUANTISED_BITS and outer is not None:
        return None
    if bits not in (4, 8):
        raise InputError(f"{quant.path}.bits", bits, "be 4 or 8")
    kind = quant.text("data_type", default="int" if outer is None else outer.text("data_type", default="int"))
    if kind.startswith("mx_fp"):
        return _Scheme(f"mxfp{bits}")
    if kind.startswith("nv_fp") and bits == 4:
        return _Scheme("nvfp4")
    if kind != "int":
        raise InputError(f"{quant.path}.data_type", kind, "be int, mx_fp or nv_fp")
    # Their files hold packed zero points whether or not the quantisation is symmetric.
    return _Scheme(f"int{bits}", group=max(group, 0), zero_points=True)


def _compressed(quant: Fields) -> Callable[[str], _Scheme | None]:
    groups = quant.section("config_groups")
    if groups is None:
        raise InputError(f"{quant.path}.config_groups", None, "be given")
    ignored = _ignored(quant)
    schemes: list[tuple[Callable[[str], bool], _Scheme]] = []
    for name in groups.values:
        group = groups.section(name)
        weights = None if group is None else group.section("weights")
        if group is None or weights is None:
            continue
        schemes.append((_targets(group), _number_scheme(weights)))

    def scheme_of(module: str) -> _Scheme | None:
        if ignored(module):
            return None
        return next((scheme for targets, scheme in schemes if targets(module)), None)

    return scheme_of


def _targets(group: Fields) -> Callable[[str], bool]:
    """Modules a config group applies to: a layer class (any linear module) or names and patterns."""
    targets = group.strings("targets") or ["Linear"]
    if any(target in ("Linear", "FusedMoE", "MoEGMM") for target in targets):
        return lambda module: module != "lm_head"
    names = frozenset(target.split("language_model.")[-1].removeprefix("model.") for target in targets)
    matchers = [_matcher(target, f"{group.path}.targets") for target in targets if _has_wildcard(target)]

    def applies(module: str) -> bool:
        bare = module.removeprefix("model.")
        above = {bare} | {bare[:index] for index, mark in enumerate(bare) if mark == "."}
        return not above.isdisjoint(names) or any(match(module) for match in matchers)

    return applies


def _number_scheme(weights: Fields) -> _Scheme:
    """Format of a compressed-tensors style `weights` record: bits, type, strategy, group or block."""
    bits, kind = weights.integer("num_bits", minimum=1), weights.text("type", default="int")
    group = weights.integer("group_size", default=0, minimum=-1)
    group = max(group, 0)
    if kind == "float" and bits == 8:
        return _Scheme("mxfp8") if group == 32 else _Scheme("fp8", block=_block_structure(weights))
    if kind == "float" and bits == 4:
        return _Scheme("nvfp4" if group == 16 else "mxfp4")
    if kind == "int" and bits in (4, 8):
        return _Scheme(f"int{bits}", group=group, zero_points=not weights.flag("symmetric", default=True))
    raise InputError(f"{weights.path}.num_bits", bits, "be a known width", f"{kind} of {bits} bits is not known")


def _block_structure(weights: Fields) -> tuple[int, int] | None:
    """`[128, 128]` or `128x128`; None where the scales are per tensor or channel."""
    field, given = weights.find("block_structure")
    if isinstance(given, str):
        given = [int(part) for part in given.split("x") if part.isdigit()]
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2:
        raise InputError(field, weights.values["block_structure"], "be two sizes")
    return check_integer(field, given[0], 1), check_integer(field, given[1], 1)


def _modelopt(quant: Fields) -> Callable[[str], _Scheme | None]:
    if "config_groups" in quant:
        return _compressed(quant)
    listed = quant.section("quantized_layers")
    algorithm, given = quant.text("quant_algo").upper(), quant.integer("group_size", default=0, minimum=-1)
    whole = _algorithm_scheme(algorithm, max(given, 0), quant.path) if listed is None else None
    if whole is not None and whole.dtype.startswith("int"):
        whole = replace(whole, zero_points=quant.flag("has_zero_point"))
    if listed is not None:
        by_name = {
            name.split("language_model.")[-1].removeprefix("model."): _algorithm_scheme(
                own.text("quant_algo").upper(), max(own.integer("group_size", default=0, minimum=-1), 0), listed.path
            )
            for name in listed.values
            for own in (listed.section(name) or Fields({}),)
        }

        def scheme_of(module: str) -> _Scheme | None:
            bare = module.removeprefix("model.")
            above = [bare] + [bare[:index] for index in range(len(bare) - 1, 0, -1) if bare[index] == "."]
            return next((by_name[name] for name in above if name in by_name), None)

        return scheme_of
    ignored = _ignored(quant)
    return lambda module: None if ignored(module) or module == "lm_head" else whole


def _algorithm_scheme(algorithm: str, group: int, path: str) -> _Scheme:
    """Scheme of a ModelOpt algorithm; `group` elements share a scale where the format leaves that open."""
    if "NVFP4" in algorithm:
        return _Scheme("nvfp4")
    if "MXFP4" in algorithm:
        return _Scheme("mxfp4")
    if "MXFP8" in algorithm:
        return _Scheme("mxfp8")
    if "FP8" in algorithm:
        return _Scheme("fp8", block=(128, 128) if "_PB_" in algorithm else None)
    if "INT8" in algorithm or algorithm.startswith("W8A"):
        return _Scheme("int8", group=group)
    if algorithm.startswith(("W4A16", "W4A8", "INT4")):
        return _Scheme("int4", group=group or _MODELOPT_GROUP)
    raise InputError(f"{path}.quant_algo", algorithm, "be a known algorithm", "FP8, NVFP4, MXFP4, W4A16_AWQ, …")


def _quark(quant: Fields) -> Callable[[str], _Scheme | None]:
    """AMD Quark: a global weight record, per-layer overrides by pattern, and an exclude list."""
    weight = _stored_weight(quant.section("global_quant_config"))
    if weight is None:
        raise InputError(f"{quant.path}.global_quant_config.weight", None, "be given")
    ignored, scheme = _ignored(quant), _quark_scheme(weight)
    special: list[tuple[Callable[[str], bool], _Scheme]] = []
    overrides = quant.section("layer_quant_config")
    for pattern in () if overrides is None else overrides.values:
        record = _stored_weight(overrides.section(pattern)) if overrides is not None else None
        if record is not None:
            special.append((_matcher(pattern, quant.path), _quark_scheme(record)))

    def scheme_of(module: str) -> _Scheme | None:
        if ignored(module):
            return None
        return next((found for match, found in special if match(module)), scheme)

    return scheme_of


def _stored_weight(config: Fields | None) -> Fields | None:
    """The `weight` record of a Quark config; of staged quantisation (a list) the last stage is what is stored."""
    staged = None if config is None else config.values.get("weight")
    if config is None or not isinstance(staged, list):
        return None if config is None else config.section("weight")
    return Fields({"weight": staged[-1] if staged else None}, config.path).section("weight")


def _quark_scheme(weight: Fields) -> _Scheme:
    name: Any = weight.values.get("dtype")
    if isinstance(name, list):  # staged quantisation: the last stage is what is stored
        name = name[-1] if name else None
    dtype = str(name).lower()
    group = max(weight.integer("group_size", default=0, minimum=-1), 0)
    if dtype.startswith("fp4"):
        return _Scheme("mxfp4" if group in (0, 32) else "nvfp4")
    if dtype.startswith("fp6"):
        return _Scheme("mxfp6")
    if dtype.startswith("fp8"):
        return _Scheme("mxfp8" if group == 32 else "fp8")
    if dtype in ("int4", "uint4", "int8", "uint8"):
        return _Scheme(dtype.removeprefix("u"), group=group, zero_points=not weight.flag("symmetric", default=True))
    raise InputError(f"{weight.path}.dtype", name, "be a known Quark dtype", "fp4, fp6_e3m2, fp8_e4m3, int4, int8")
