"""Units by name: inside simcore every quantity is SI-like and says its unit in its suffix.

`SUFFIXES` is the registry that the signature lint and `docs/generated/nomenclature.md` are made from.
"""

from __future__ import annotations

from typing import Final

SUFFIXES: Final[dict[str, str]] = {
    "_s": "seconds",
    "_ms": "milliseconds (borders only: files and tables that people read)",
    "_us": "microseconds (borders only)",
    "_ns": "nanoseconds, integer (simulator records)",
    "_ps": "picoseconds, integer (step prices inside the simulator)",
    "_bytes": "bytes",
    "_bytes_per_s": "bytes per second",
    "_bytes_per_token": "bytes per token",
    "_bytes_per_param": "bytes per parameter",
    "_bytes_per_value": "bytes per stored or moved value",
    "_flop": "floating point operations",
    "_flop_per_s": "floating point operations per second",
    "_flop_per_token": "floating point operations per token",
    "_flop_per_token2": "floating point operations per squared token",
    "_tokens": "tokens",
    "_tokens_per_step": "tokens per step and request",
    "_tokens_per_s": "tokens per second",
    "_s_per_token": "seconds per token",
    "_s_per_token2": "seconds per squared token",
    "_s_per_byte": "seconds per byte",
    "_s_per_layer": "seconds per layer",
    "_s_per_request": "seconds per request",
    "_ps_per_token": "picoseconds per token",
    "_ps_per_token2": "picoseconds per squared token",
    "_requests": "requests",
    "_requests_per_s": "requests per second",
    "_blocks": "KV cache blocks",
    "_frac": "dimensionless fraction",
    "_hit_rate": "fraction of what was asked that a cache held (the trade's word)",
    "_ratio": "dimensionless ratio",
    "_factor": "dimensionless factor",
    "_pct": "percent (borders only)",
    "_count": "dimensionless count",
    "_usd_per_s": "US dollars per second",
}

GIB: Final = 1 << 30
MIB: Final = 1 << 20
KIB: Final = 1 << 10
GIGA: Final = 10**9
MILLI: Final = 1e-3
MICRO: Final = 1e-6
PS_PER_S: Final = 10**12
PS_PER_NS: Final = 10**3
NS_PER_S: Final = 10**9
