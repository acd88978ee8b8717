"""Tile-level roofline of a weight product: the slower of reading its bytes and computing whole tiles in waves."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcore.cards.accelerator import AcceleratorCard
from simcore.cards.formats import canonical_format
from simcore.errors import InputError

Floats = NDArray[np.float64]

TILE_EDGES: Final = (16, 32, 64, 128, 256)
"""Square output tiles of one compute unit, ascending; matrix instructions work on 16 x 16 blocks."""
WIDER: Final = ("mxfp4", "mxfp6", "fp8", "bf16")
"""Where a format has no native path, the next wider one that has computes it."""
COMPUTES_AS: Final = {"nvfp4": "mxfp4", "int4": "bf16", "mxfp8": "fp8", "int8": "fp8", "fp16": "bf16", "fp32": "bf16"}
COMPUTE_UNITS: Final = {"gfx942": 304, "gfx950": 256}
"""Compute units per GPU by architecture. Source: AMD datasheets of MI300X/MI325X and MI350X/MI355X."""


def peak_flop_per_s(accelerator: AcceleratorCard, weights_dtype: str, activations_dtype: str) -> float:
    """Datasheet peak for weights and activations in these formats: the wider of the two that has a native path.

    4-bit weights with 16-bit activations compute in 16 bits. Raises InputError where the card lists no usable path.
    """
    peaks = accelerator.peak_flop_per_s
    order = [COMPUTES_AS.get(name, name) for name in map(canonical_format, (weights_dtype, activations_dtype))]
    start = max(WIDER.index(name) if name in WIDER else len(WIDER) - 1 for name in order)
    for name in WIDER[start:]:
        if name in peaks:
            return peaks[name]
    raise InputError("accelerator.peak_flop_per_s", sorted(peaks), f"hold {WIDER[-1]}, the fallback of {order}")


def matrix_s(
    rows: Floats,
    *,
    inner: float,
    columns: float,
    weight_bytes: float,
    activation_bytes_per_value: float,
    read_bytes_per_s: float,
    flop_per_s: float,
    units_count: int,
) -> Floats:
    """Seconds of one (rows, inner) x (inner, columns) product for each of `rows`. (n,) in, (n,) out.

    max(bytes / reached bandwidth, whole waves of whole tiles / reached rate); `flop_per_s` is peak times the reached
    share. The tile is the largest that still gives every compute unit one, else the smallest. Source: roofline with
    tile and wave quantisation.
    """
    rows = np.asarray(rows, dtype=np.float64)
    moved = weight_bytes + activation_bytes_per_value * rows * (inner + columns)
    compute = np.zeros_like(rows)
    for edge in TILE_EDGES:
        tiles = np.ceil(rows / edge) * np.ceil(columns / edge)
        waves = np.ceil(tiles / units_count)
        seconds = waves * units_count * 2.0 * edge * edge * inner / flop_per_s
        compute = np.where((tiles >= units_count) | (edge == TILE_EDGES[0]), seconds, compute)
    return np.maximum(moved / read_bytes_per_s, compute)
