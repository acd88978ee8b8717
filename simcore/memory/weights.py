"""Weight bytes of one GPU, by part, for every pipeline stage (paper B.5: weights by component dtype and layout)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from simcore.cards.formats import storage_format
from simcore.cards.layout import Engine, Layout, ResolvedLayout, resolve, stage_layers
from simcore.cards.matrices import (
    Matrix,
    Part,
    embedding_matrices,
    layer_matrices,
    part_dtype,
    vector_elements_count,
)
from simcore.cards.model import LayerGroup, ModelCard
from simcore.errors import InputError

SCALES, ROTARY, DRAFT = "scales", "rotaryTable", "draft"


@dataclass(frozen=True)
class WeightChoices:
    """What changes weight bytes beside the layout."""

    redundant_experts_count: int = 0
    """Extra physical copies of experts (EPLB)."""
    fused_shared_experts: bool = False
    """Shared experts run as extra routed experts: split like those, a copy on every EP rank."""
    draft_layers_count: int = 0
    """Loaded MTP layers."""


def weight_bytes_by_stage(
    *,
    card: ModelCard,
    layout: Layout,
    engine: Engine,
    split: Sequence[int] | None = None,
    choices: WeightChoices = WeightChoices(),
) -> tuple[Mapping[str, int], ...]:
    """Bytes on one GPU of each stage, by part (`attention`, `routedExperts`, `scales`, …).

    Attention, dense and shared experts are divided by the attention TP width (under attention DP they are
    replicated per rank: an upper bound for SGLang, which may still split dense layers), experts by moe_tp and
    moe_ep; latent down-projections, routers, norms and indexers are replicated. Raises InputError when the card's
    shape is not fully known.
    """
    if card.unknown:
        raise InputError("model.config", list(card.unknown), "give these shape fields", "weight bytes need them")
    widths = resolve(layout, engine, is_moe=card.is_moe)
    counts = stage_layers(layers_count=card.layers_count, stages_count=layout.pipeline_parallel, split=split)
    stages: list[Mapping[str, int]] = []
    start = 0
    for number, layers_count in enumerate(counts):
        end = start + layers_count
        total: dict[str, int] = {}
        for group in card.groups:
            inside = (
                sum(start <= index < end for index in group.layer_indexes) if len(counts) > 1 else group.layers_count
            )
            _add(total, _layer_bytes(card, group, widths, choices), inside)
        _add(total, _ends_bytes(card, widths, first=number == 0, last=number == len(counts) - 1))
        if number == len(counts) - 1 and choices.draft_layers_count:
            draft = _layer_bytes(card, card.groups[-1], widths, choices)
            base = storage_format(card.dtypes.embeddings)
            joined = base.payload_bytes(2 * card.hidden * card.hidden + 3 * card.hidden)
            total[DRAFT] = choices.draft_layers_count * (sum(draft.values()) + joined)
        total[ROTARY] = _rotary_bytes(card)
        stages.append({part: value for part, value in total.items() if value})
        start = end
    return tuple(stages)


def _rotary_bytes(card: ModelCard) -> int:
    """The cos/sin table that one stage keeps: positions x rotary width, unquantised (public case A13)."""
    return storage_format(card.dtypes.embeddings).payload_bytes(card.max_position_tokens * card.rope_dim)


def _add(total: dict[str, int], parts: Mapping[str, int], times: int = 1) -> None:
    for part, value in parts.items():
        total[part] = total.get(part, 0) + times * value


@lru_cache(maxsize=4096)
def _layer_bytes(
    card: ModelCard, group: LayerGroup, widths: ResolvedLayout, choices: WeightChoices
) -> Mapping[str, int]:
    """Bytes of one layer of `group` on one GPU, by part."""
    total: dict[str, int] = {}
    for matrix in layer_matrices(group, card.hidden):
        width, copies = _width_and_copies(matrix, widths, choices)
        _add(total, _matrix_bytes(card, matrix, width, copies))
    vectors = storage_format(card.dtypes.embeddings).payload_bytes(vector_elements_count(group, card.hidden))
    _add(total, {Part.NORMS.value: vectors})
    return total


def _width_and_copies(matrix: Matrix, widths: ResolvedLayout, choices: WeightChoices) -> tuple[int, int]:
    if matrix.part is Part.EXPERTS:
        return widths.moe_tp, -(-(matrix.copies + choices.redundant_experts_count) // widths.moe_ep)
    if matrix.part is Part.SHARED and choices.fused_shared_experts:
        return widths.moe_tp, matrix.copies
    return widths.attention_tp, matrix.copies


def _matrix_bytes(card: ModelCard, matrix: Matrix, width: int, copies: int) -> Mapping[str, int]:
    """Payload under the matrix's part, scales under `scales`."""
    form = storage_format(part_dtype(card, matrix))
    elements = matrix.local_elements_count(width) // matrix.copies * copies
    scales = 0
    group = form.group or (card.dtypes.group if form.name in ("int4", "int8") else 0)
    if group:
        groups_count = -(-elements // group)
        scales = groups_count * form.scale_bytes
        if card.dtypes.zero_points and not form.group:
            scales += form.payload_bytes(groups_count)
    elif form.name == "fp8" and card.dtypes.block is not None and not card.dtypes.online:
        scales = -(-elements // (card.dtypes.block[0] * card.dtypes.block[1])) * form.scale_bytes
    return {matrix.part.value: form.payload_bytes(elements), SCALES: scales}


def _ends_bytes(card: ModelCard, widths: ResolvedLayout, *, first: bool, last: bool) -> Mapping[str, int]:
    """Embedding on the first stage, final norm and head on the last; a tied head is a second copy when PP > 1."""
    total: dict[str, int] = {}
    embedding, *head = embedding_matrices(card)
    if first:
        _add(total, _matrix_bytes(card, embedding, widths.attention_tp, 1))
    if last:
        _add(total, {Part.NORMS.value: storage_format(card.dtypes.embeddings).payload_bytes(card.hidden)})
        if head:
            _add(total, _matrix_bytes(card, head[0], widths.attention_tp, 1))
        elif not first:
            _add(total, _matrix_bytes(card, embedding, widths.attention_tp, 1))
    return total
