"""Which anchor a target gets, and why not the others (paper 3.1.1, 5.1, App. E, I).

Anchor-defining fields must match; transferable ones may differ and are flagged. A target field left None takes the
anchor's value, which the plan then pins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from simcore.anchors.checks import Verdict, canonical_partition, check_anchor
from simcore.anchors.schema import Anchor, GraphCapture, Speculation
from simcore.cards.accelerator import is_cpu
from simcore.cards.formats import canonical_format
from simcore.cards.kv_dtype import canonical_kv_dtype, is_fp8_kv
from simcore.cards.labels import PLANNING_PARTITION
from simcore.cards.library import known_model
from simcore.cards.versions import version_key
from simcore.errors import InputError, NoAnchorError, UnknownNameError

CONCURRENCY_REACH: Final = 4
"""An anchor covers up to four times the concurrency it was measured at (paper 5.1)."""
NARROW_SWEEP_POINTS: Final = 3
"""A narrower anchor must be a batch sweep (paper 5.1); ours: from batch 1 over at least three batches."""
FITTED_FIRST_BATCH: Final = 8
"""Benchmark tables rarely hold one client: a fitted sweep may start here, as those that `validate` is scored on do."""
LENGTH_REACH: Final = 1.25
"""Prompt lengths this far outside the measured ones still count as the same. Ours."""


class Flag(StrEnum):
    """How a usable anchor differs from its target; stable words that outputs repeat."""

    PROMPT_LENGTH = "prompt-length-differs"
    PREFILL_LENGTH = "prefill-length-outside-sweep"
    PACKING_LENGTH = "packing-length-differs"
    NARROWER_ANCHOR = "anchor-narrower"
    WIDER_ANCHOR = "anchor-wider"
    EXTRAPOLATED_WIDTH = "extrapolated-width"
    BATCH_RANGE = "batch-beyond-sweep"
    CONCURRENCY = "concurrency-beyond-reach"
    EXPERT_PARALLEL = "expert-parallel-differs"
    ATTENTION_DP = "attention-dp-differs"
    UNVERIFIED = "unverified-signature"
    """A field the anchor does not know: benchmark tables do not print everything."""
    FP8_KV = "fp8-kv-output-unchecked"
    DUMMY_WEIGHTS = "dummy-weights"
    CHECKS = "checks-flagged"
    NOT_MEASURED = "not-harvested"
    """Fitted, derived or taken from a publication."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a prediction asks for. None in an anchor-defining field means: whatever the anchor has."""

    accelerator: str
    engine: str
    model: str
    tensor_parallel: int
    weights_dtype: str | None = None
    activation_dtype: str | None = None
    kv_dtype: str | None = None
    expert_dtype: str | None = None
    engine_version: str | None = None
    image: str | None = None
    partition: str | None = None
    attention_backend: str | None = None
    moe_backend: str | None = None
    graph_capture_mode: str | None = None
    speculation: Speculation | None = None
    speculates: bool | None = None
    """False demands no speculation, True the method and depth of `speculation`, None takes the anchor's."""
    expert_parallel: int = 1
    attention_data_parallel: int = 1
    prompt_tokens: int | None = None
    max_batch: int | None = None
    concurrency: int | None = None
    packed_tokens: int | None = None
    """Length of the sequences that are packed into one step, where that matters."""

    @property
    def label(self) -> str:
        return f"{self.model} on {self.engine} {self.accelerator} TP{self.tensor_parallel}"


@dataclass(frozen=True)
class Selection:
    """The chosen anchor (None when none applies), how it differs, and the reasons against every other one."""

    chosen: Anchor | None
    flags: tuple[str, ...]
    """Stable words, `Flag` values."""
    notes: tuple[str, ...]
    """One sentence per flag."""
    refusals: Mapping[str, tuple[str, ...]]
    """Anchor key to reasons; the usable ones that lost say what was better."""
    sibling: Anchor | None = None
    """The same stack at half the chosen anchor's width, for the measured shrink."""
    adopted: Mapping[str, str] | None = None
    """Signature fields that the target left open and takes from the anchor."""

    @property
    def is_covered(self) -> bool:
        """Same build and layout (TP may be narrower), within reach of the concurrency (paper 5.1)."""
        uncovered = {Flag.CONCURRENCY, Flag.WIDER_ANCHOR, Flag.EXPERT_PARALLEL, Flag.ATTENTION_DP, Flag.UNVERIFIED}
        return self.chosen is not None and not uncovered.intersection(self.flags)

    def require(self, target: Target) -> Anchor:
        """The chosen anchor. Raises NoAnchorError with the reason each one was refused."""
        if self.chosen is None:
            raise NoAnchorError(target.label, {name: list(why) for name, why in self.refusals.items()})
        return self.chosen


def anchor_key(anchor: Anchor) -> str:
    """How an anchor is named in messages: its label and the start of its digest."""
    return f"{anchor.label} ({anchor.digest()[7:15]})"


def select_anchor(target: Target, anchors: Sequence[Anchor], *, allow_dummy_weights: bool = False) -> Selection:
    """The anchor that `target` gets; the result does not depend on the order of `anchors`."""
    refusals: dict[str, tuple[str, ...]] = {}
    usable: list[tuple[tuple[object, ...], Anchor, dict[Flag, str]]] = []
    for anchor in {item.digest(): item for item in anchors}.values():
        reasons = refusal_reasons(target, anchor, allow_dummy_weights=allow_dummy_weights)
        if reasons:
            refusals[anchor_key(anchor)] = reasons
            continue
        flags = difference_flags(target, anchor)
        usable.append((_rank(target, anchor, flags), anchor, flags))
    if not usable:
        return Selection(None, (), (), dict(sorted(refusals.items())))
    usable.sort(key=lambda item: item[0])  # the digest is the last part of the rank, so no two are equal
    _, chosen, flags = usable[0]
    for rank, other, other_flags in usable[1:]:
        listed = ", ".join(flag.value for flag in other_flags) or "no flag"
        better = next(word for word, own, lost in zip(_BETTER, usable[0][0], rank, strict=True) if own != lost)
        refusals[anchor_key(other)] = (f"usable ({listed}), but {anchor_key(chosen)} {better}",)
    sibling = _sibling(chosen, [anchor for _, anchor, _ in usable])
    ordered = sorted(flags.items())
    return Selection(
        chosen,
        tuple(flag.value for flag, _ in ordered),
        tuple(text for _, text in ordered),
        dict(sorted(refusals.items())),
        sibling,
        _adopted(target, chosen),
    )


def refusal_reasons(target: Target, anchor: Anchor, *, allow_dummy_weights: bool = False) -> tuple[str, ...]:
    """Every reason why `anchor` must not be used for `target`; empty when it may."""
    sign = anchor.signature
    reasons = [
        f"{name}: anchor has {held}, target asks {asked}"
        for name, held, asked, same in _defining(target, anchor)
        if not same and held is not None
    ]
    if _is_cpu(anchor) and not is_cpu(target.accelerator):
        reasons.append("harvested on a CPU: never used to plan GPUs")
    if target.image and sign.image and target.image != sign.image:
        reasons.append(f"stale: harvested with image {sign.image}, the target runs {target.image}")
    if target.speculates and target.speculation is None and sign.speculation is None:
        reasons.append("speculation: anchor runs none, target asks for it (public case B07)")
    if target.speculates is False and sign.speculation is not None:
        reasons.append(f"speculation: anchor runs {sign.speculation.method}, target asks none")
    reasons += [
        f"check {result.name} failed: {result.detail}"
        for result in check_anchor(anchor)
        if result.verdict is Verdict.REFUSE and not (allow_dummy_weights and result.name == "real-weights")
    ]
    batches = [point.batch for point in anchor.decode[0].points]
    first = FITTED_FIRST_BATCH if anchor.provenance.source == "fitted" else 1
    if sign.tensor_parallel < target.tensor_parallel and (len(batches) < NARROW_SWEEP_POINTS or batches[0] > first):
        reasons.append(f"narrower than the target and no batch sweep from {first} on (batches {batches})")
    return tuple(reasons)


def difference_flags(target: Target, anchor: Anchor) -> dict[Flag, str]:
    """How a usable anchor differs from `target` in transferable fields, each with a sentence."""
    sign, flags = anchor.signature, {}
    if target.prompt_tokens is not None:
        lengths = [sweep.prompt_tokens for sweep in anchor.decode]
        if not lengths[0] / LENGTH_REACH <= target.prompt_tokens <= lengths[-1] * LENGTH_REACH:
            flags[Flag.PROMPT_LENGTH] = f"decode was measured at {lengths} prompt tokens, not {target.prompt_tokens}"
        points = [point.prompt_tokens for point in anchor.prefill.points]
        if not points[0] / LENGTH_REACH <= target.prompt_tokens <= points[-1] * LENGTH_REACH:
            flags[Flag.PREFILL_LENGTH] = f"prefill was measured from {points[0]} to {points[-1]} tokens"
    if target.packed_tokens and anchor.packed_prefill and anchor.packed_prefill.sequence_tokens != target.packed_tokens:
        flags[Flag.PACKING_LENGTH] = f"packing was probed at {anchor.packed_prefill.sequence_tokens} tokens"
    doublings = math.log2(target.tensor_parallel / sign.tensor_parallel)
    if doublings > 0:
        flags[Flag.NARROWER_ANCHOR] = f"TP{sign.tensor_parallel} moved to TP{target.tensor_parallel}"
    elif doublings < 0:
        flags[Flag.WIDER_ANCHOR] = f"TP{sign.tensor_parallel} moved down to TP{target.tensor_parallel}"
    if abs(doublings) > 1:
        flags[Flag.EXTRAPOLATED_WIDTH] = f"{abs(doublings):g} doublings of width; one is validated"
    largest = anchor.decode[0].points[-1].batch
    if target.max_batch is not None and target.max_batch > largest:
        flags[Flag.BATCH_RANGE] = f"batches to {target.max_batch}, measured to {largest}"
    measured = anchor.provenance.max_concurrency or largest
    if target.concurrency is not None and target.concurrency > CONCURRENCY_REACH * measured:
        flags[Flag.CONCURRENCY] = f"{target.concurrency} in flight is more than {CONCURRENCY_REACH} x {measured}"
    if sign.expert_parallel != target.expert_parallel:
        flags[Flag.EXPERT_PARALLEL] = f"EP{sign.expert_parallel} moved to EP{target.expert_parallel}"
    if sign.attention_data_parallel != target.attention_data_parallel:
        flags[Flag.ATTENTION_DP] = (
            f"attention DP {sign.attention_data_parallel} moved to {target.attention_data_parallel}"
        )
    unknown = [name for name, held, asked, _ in _defining(target, anchor) if held is None and asked is not None]
    if unknown:
        flags[Flag.UNVERIFIED] = f"the anchor does not record {', '.join(unknown)}"
    if target.kv_dtype is None and has_unchecked_fp8_kv(anchor):
        flags[Flag.FP8_KV] = "nobody asked for the anchor's FP8 KV cache, and no harvest check has passed its output"
    if not anchor.provenance.real_weights:
        flags[Flag.DUMMY_WEIGHTS] = "harvested with random weights"
    flagged = [result.name for result in check_anchor(anchor) if result.verdict is Verdict.FLAG]
    if flagged:
        flags[Flag.CHECKS] = f"harvest checks flagged: {', '.join(flagged)}"
    if anchor.provenance.source != "harvested":
        flags[Flag.NOT_MEASURED] = f"source: {anchor.provenance.source}"
    return flags


def _defining(target: Target, anchor: Anchor) -> list[tuple[str, object, object, bool]]:
    """(field, anchor's value, target's value, equal); a target that leaves the field open equals."""
    sign = anchor.signature
    rows: list[tuple[str, object, object, bool]] = []

    def add(name: str, held: str | None, asked: str | None, same: bool) -> None:
        rows.append((name, held, asked, asked is None or same))

    add(
        "accelerator",
        sign.accelerator,
        target.accelerator,
        canonical_accelerator(sign.accelerator) == canonical_accelerator(target.accelerator),
    )
    add("engine", sign.engine, target.engine, _folded(sign.engine) == _folded(target.engine))
    add("model", sign.model, target.model, same_model(sign.model, target.model))
    for name, held, asked, known in (
        ("weightsDtype", sign.weights_dtype, target.weights_dtype, canonical_format),
        ("activationDtype", sign.activation_dtype, target.activation_dtype, canonical_format),
        ("kvDtype", sign.kv_dtype, target.kv_dtype, canonical_kv_dtype),
        ("expertDtype", sign.expert_dtype, target.expert_dtype, canonical_format),
    ):
        add(name, held, asked, held is not None and asked is not None and _one_format(held, asked, known))
    for name, held, asked in (
        ("engineVersion", sign.engine_version, target.engine_version),
        ("attentionBackend", sign.attention_backend, target.attention_backend),
        ("moeBackend", sign.moe_backend, target.moe_backend),
        ("graphCapture.mode", _mode(sign.graph_capture), target.graph_capture_mode),
    ):
        add(name, held, asked, held is not None and asked is not None and _folded(held) == _folded(asked))
    # Whole GPUs are what nobody mentions: an anchor without a partition never stands for a part (public case A26).
    asked_partition = target.partition
    is_split = asked_partition is not None and canonical_partition(asked_partition) != PLANNING_PARTITION
    held_partition = sign.partition or (PLANNING_PARTITION if is_split else None)
    add(
        "partition",
        held_partition,
        asked_partition,
        held_partition is not None
        and asked_partition is not None
        and canonical_partition(held_partition) == canonical_partition(asked_partition),
    )
    if target.speculates and target.speculation is not None:
        held_text, asked_text = _draft(sign.speculation), _draft(target.speculation)
        add("speculation", held_text, asked_text, held_text == asked_text)
    return rows


_BETTER: Final = (
    "has real weights",
    "has no unchecked FP8 KV cache",
    "is not wider than the target",
    "is nearer in width",
    "has the target's expert parallelism",
    "has the target's attention data parallelism",
    "records all that the target asks",
    "has the surer source",
    "has no flagged check",
    "reaches the target's batches and concurrency",
    "is of a newer engine",
    "is nearer in prompt length",
    "was measured to larger batches",
    "is its equal and comes first by digest",
)
"""What the chosen anchor is better in, place by place of `_rank`."""


def _rank(target: Target, anchor: Anchor, flags: Mapping[Flag, str]) -> tuple[object, ...]:
    """Nearest first: layout, then how sure the figures are, then traffic, then the digest."""
    sign = anchor.signature
    doublings = abs(math.log2(target.tensor_parallel / sign.tensor_parallel))
    sources = ("harvested", "fitted", "derived", "paper")
    length = target.prompt_tokens or anchor.decode[0].prompt_tokens
    nearest = min(abs(math.log2(length / sweep.prompt_tokens)) for sweep in anchor.decode)
    largest = anchor.decode[0].points[-1].batch
    return (
        Flag.DUMMY_WEIGHTS in flags,
        Flag.FP8_KV in flags,
        Flag.WIDER_ANCHOR in flags,
        doublings,
        Flag.EXPERT_PARALLEL in flags,
        Flag.ATTENTION_DP in flags,
        Flag.UNVERIFIED in flags,
        sources.index(anchor.provenance.source),
        Flag.CHECKS in flags,
        Flag.CONCURRENCY in flags or Flag.BATCH_RANGE in flags,
        _age(sign.engine_version),
        nearest,
        -largest,
        anchor.digest(),
    )


def _age(version: str | None) -> tuple[int, ...]:
    """What releases sort by, the newest first; what is no release, or unknown, comes last."""
    try:
        numbers, post = version_key(version or "")
    except InputError:
        return (1,)
    return tuple(-number for number in (*numbers, post))


def _sibling(chosen: Anchor, usable: Sequence[Anchor]) -> Anchor | None:
    half = chosen.signature.tensor_parallel / 2
    fitting = [
        other
        for other in usable
        if other.signature.tensor_parallel == half
        and other.signature.model_copy(update={"tensor_parallel": chosen.signature.tensor_parallel}) == chosen.signature
        and other.decode[0].prompt_tokens == chosen.decode[0].prompt_tokens
    ]
    return min(fitting, key=lambda anchor: anchor.digest(), default=None)


def _adopted(target: Target, anchor: Anchor) -> dict[str, str]:
    sign = anchor.signature
    pairs = [(name, held) for name, held, asked, _ in _defining(target, anchor) if asked is None and held is not None]
    adopted = {name: str(held) for name, held in pairs}
    if target.image is None and sign.image is not None:
        adopted["image"] = sign.image
    if target.speculates is None and sign.speculation is not None:
        adopted["speculation"] = _draft(sign.speculation)
    return adopted


def canonical_accelerator(name: str) -> str:
    """`AMD_Instinct_MI355X_OAM`, `amd instinct mi355x` and `MI355X` are one product."""
    found = re.search(r"MI\d{3}[A-Z]?", name.upper())
    return found.group(0) if found else name.strip().upper()


def same_model(left: str, right: str) -> bool:
    """Whether two checkpoint names agree: case and owner apart, or both names of one built-in card.

    The owner counts where both name one and no card knows the name.
    """
    one, two = left.lower().strip("/").split("/"), right.lower().strip("/").split("/")
    if one[-1] == two[-1] and (len(one) < 2 or len(two) < 2 or one[-2:] == two[-2:]):
        return True
    known = known_model(left)
    return known is not None and known == known_model(right)


def has_unchecked_fp8_kv(anchor: Anchor) -> bool:
    """FP8 KV of the other kind serves 200 and garbage, as fast as the right one (public case A24)."""
    return _has_fp8_kv(anchor) and not fp8_kv_output_passed(anchor)


def fp8_kv_output_passed(anchor: Anchor) -> bool:
    """Has a harvest check looked at what this anchor's FP8 KV cache produces? Never where the anchor has none."""
    passed = any(check.name == "output" and check.verdict == "pass" for check in anchor.provenance.checks)
    return passed and _has_fp8_kv(anchor)


def _has_fp8_kv(anchor: Anchor) -> bool:
    return is_fp8_kv(_format(anchor.signature.kv_dtype or "", canonical_kv_dtype))


def _is_cpu(anchor: Anchor) -> bool:
    architecture = anchor.signature.accelerator_architecture or ""
    return is_cpu(anchor.signature.accelerator) or architecture.lower() in ("x86_64", "aarch64", "arm64", "cpu")


def _one_format(held: str, asked: str, known: Callable[[str], str]) -> bool:
    """Two names of one format; tables call each vendor's own four-bit format `fp4`."""
    names = {_format(held, known), _format(asked, known)}
    return len(names) == 1 or ("fp4" in (_folded(held), _folded(asked)) and names <= {"mxfp4", "nvfp4"})


def _format(dtype: str, known: Callable[[str], str] = canonical_format) -> str:
    try:
        return known(dtype)
    except UnknownNameError:
        return _folded(dtype)


def _folded(text: str) -> str:
    """Case, `_` for `-` and the `v` before a version apart."""
    return re.sub(r"^v(?=\d)", "", text.strip().lower().replace("_", "-"))


def _mode(capture: GraphCapture | None) -> str | None:
    return capture.mode if capture else None


def _draft(speculation: Speculation | None) -> str:
    return f"{speculation.method} depth {speculation.depth}" if speculation else "none"
