"""The accelerator card: datasheet peaks, memory as the device reports it, links; data in `simcore/data`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CPU: Final = "CPU"
"""Product of a harvest without a GPU, for trying things out: no plan of a GPU takes its anchor."""


@dataclass(frozen=True)
class AcceleratorCard:
    """One GPU type and the node it sits in. Peaks are datasheet figures, never multiplied by an efficiency."""

    name: str
    architecture: str
    """LLVM target, e.g. gfx950."""
    hbm_bytes: int
    """Memory the device reports (HSA), or the nominal class where no log was seen (then listed in `assumed`)."""
    hbm_bytes_per_s: float
    peak_flop_per_s: Mapping[str, float]
    """Dense matrix peak by dtype (bf16, fp8, mxfp4, …); a dtype without a native path is absent."""
    gpus_per_node: int
    link_bytes_per_s: float
    """In-node links of one GPU, one direction, all together."""
    nic_bytes_per_s: float
    """Network card of one GPU, one direction."""
    host_link_bytes_per_s: float
    device_ids: tuple[str, ...]
    vf_device_ids: tuple[str, ...]
    image_flavour: str
    fp8_format: str
    """`fnuz` (gfx942) or `ocp` (gfx950)."""
    validation_only: bool = False
    """Cards kept to test the laws on other vendors' data: refused for planning."""
    assumed: tuple[str, ...] = ()
    sources: Mapping[str, str] = ()  # type: ignore[assignment]
    """Field name to source."""

    def assumptions(self) -> tuple[str, ...]:
        """`assumed` for people: whose figure it is, and which value was taken."""
        return tuple(f"{self.name}: {name} = {getattr(self, name):g}" for name in self.assumed)


def is_cpu(product: str) -> bool:
    """Whether a product name says that no GPU was, or is to be, measured."""
    return product.strip().upper() == CPU
