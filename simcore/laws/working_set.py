"""Buffers that live for one step and grow with what is scheduled together."""

from __future__ import annotations

from simcore.laws.domain import require_not_negative, require_positive
from simcore.laws.registry import OURS, Quantity, law


@law(paper=OURS, equation="indexer logits")
def indexer_logits_bytes(
    *, query_rows_count: Quantity, context_rows_count: Quantity, element_bytes: Quantity
) -> Quantity:
    """Logits buffer of a sparse-attention indexer that scores every query of a step against every key of the batch.

    Equation: m = M N e
    Args:
        query_rows_count: M [1], query tokens of the step (prefill chunk or batch).
        context_rows_count: N [1], context tokens of all co-scheduled requests together.
        element_bytes: e [bytes], 4 for the engines' 32-bit logits.
    Returns: m [bytes].
    Domain: M and N not negative; e above 0.
    Not modelled: engines that chunk the buffer (they cap it instead).
    Source: public case A20 (8,192 x 348,000 is 10.62 GiB; 16,384 x 460,000 is 28.08 GiB).

    >>> indexer_logits_bytes(query_rows_count=8192, context_rows_count=348_000, element_bytes=4)
    11403264000
    """
    require_not_negative(query_rows_count=query_rows_count, context_rows_count=context_rows_count)
    require_positive(element_bytes=element_bytes)
    return query_rows_count * context_rows_count * element_bytes
