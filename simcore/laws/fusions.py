"""The six fusions that a build can offer, their legality, and the range of what each saves (paper Sec. 4, Table 21)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Final

from simcore.data.constants import constant
from simcore.data.loader import parse_yaml
from simcore.errors import InputError, UnknownNameError
from simcore.laws.host import fusion_saving

ALL_FUSIONS: Final = "all"
"""Generic flag: every legal fusion; not to be combined with names."""


@dataclass(frozen=True)
class Fusion:
    """One named fusion. Kernel counts and intermediates are ours, from the paper's descriptions: `assumed`."""

    name: str
    replaces: str
    kernels_per_layer_count: int
    intermediate: str
    """Width per token of what is no longer written: hidden, intermediate or none."""
    writes_per_layer_count: int
    needs_quantised_activations: bool
    needs_moe: bool


@cache
def load_fusions() -> dict[str, Fusion]:
    """The six fusions by name."""
    text = resources.files("simcore.data").joinpath("fusions.yaml").read_text(encoding="utf-8")
    known = {field.name for field in fields(Fusion)}
    rows = parse_yaml(text, "fusions.yaml")
    for row in rows:
        if set(row) != known:
            raise InputError("fusions", sorted(set(row) ^ known), "have exactly the known keys")
    return {row["name"]: Fusion(**row) for row in rows}


def legal_fusions(*, quantised_activations: bool, is_moe: bool) -> tuple[str, ...]:
    """Names that a model and its activations allow: quant-fed ones need low precision, MoE ones need experts."""
    return tuple(
        fusion.name
        for fusion in load_fusions().values()
        if (quantised_activations or not fusion.needs_quantised_activations) and (is_moe or not fusion.needs_moe)
    )


def check_fusions(names: Sequence[str], *, quantised_activations: bool, is_moe: bool) -> tuple[str, ...]:
    """The fusions a candidate asks for. Raises InputError for a repeat, names beside `all`, or an illegal one."""
    legal = legal_fusions(quantised_activations=quantised_activations, is_moe=is_moe)
    if list(names) == [ALL_FUSIONS]:
        return legal
    for name in names:
        if name == ALL_FUSIONS:
            raise InputError("fusions", list(names), "hold either `all` or names, not both")
        if name not in load_fusions():
            raise UnknownNameError("fusions", name, load_fusions())
        if name not in legal:
            must = "be legal for this model and its activations: " + (", ".join(legal) or "none")
            raise InputError("fusions", name, must)
    if len(set(names)) != len(names):
        raise InputError("fusions", list(names), "not repeat a fusion")
    return tuple(names)


def fusion_saving_range(
    *,
    name: str,
    layers_count: int,
    step_tokens: float,
    hidden_bytes_per_token: float,
    intermediate_bytes_per_token: float,
    memory_bytes_per_s: float,
) -> tuple[float, float]:
    """(low, high) seconds that `name` saves in a step: 75 to 100 % of the ideal saving.

    `layers_count` counts the layers it applies to (MoE layers for the MoE fusions); `intermediate_bytes_per_token` is
    the activation between up and down projection of one token on one GPU, all its experts together.
    Raises UnknownNameError, DomainError. Source: paper Sec. 4.
    """
    if name not in load_fusions():
        raise UnknownNameError("fusions", name, load_fusions())
    fusion = load_fusions()[name]
    width = {"hidden": hidden_bytes_per_token, "intermediate": intermediate_bytes_per_token, "none": 0.0}
    low, high = (
        fusion_saving(
            kernels_removed_count=fusion.kernels_per_layer_count * layers_count,
            kernel_s=constant("kernel.occupancy_s").value,
            intermediate_bytes=fusion.writes_per_layer_count * layers_count * step_tokens * width[fusion.intermediate],
            memory_bytes_per_s=memory_bytes_per_s,
            realised_frac=constant(f"fusion.saving_{end}_frac").value,
        )
        for end in ("low", "high")
    )
    return float(low), float(high)
