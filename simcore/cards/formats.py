"""Storage formats by name: how many bytes n elements take, scales apart. Data in `simcore/data/formats.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from simcore.data import loader
from simcore.errors import FormatError, UnknownNameError

_ALIASES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "auto": "bf16",
    "fp8_e4m3": "fp8", "fp8_e4m3fn": "fp8", "fp8_e4m3fnuz": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8",
    "float8_e4m3fnuz": "fp8", "float8_e5m2": "fp8", "e4m3": "fp8", "fp8-ptpc": "fp8", "fp4": "nvfp4",
    "fp4_e2m1": "nvfp4",
    "w4a16": "int4", "awq": "int4", "gptq": "int4", "w8a8": "int8", "w8a8-int8": "int8", "w8a8-fp8": "fp8",
    "fp8-block": "fp8", "block-fp8": "fp8", "fp8-dynamic": "fp8", "ptpc-fp8": "fp8", "ocp-mxfp4": "mxfp4",
}  # fmt: skip


@dataclass(frozen=True)
class StorageFormat:
    """One format: `element_bits` per element plus `scale_bytes` per `group` elements (0 = the checkpoint says)."""

    name: str
    element_bits: int
    group: int
    scale_bytes: int
    source: str

    def payload_bytes(self, elements_count: int) -> int:
        """Bytes of `elements_count` packed elements, without scales."""
        return -(-elements_count * self.element_bits // 8)


@cache
def known_formats() -> dict[str, StorageFormat]:
    """Every format by canonical name."""
    found: dict[str, StorageFormat] = {}
    for item in loader.read_data("formats.yaml"):
        fields = loader.record(item, "formats.yaml", required={"name", "element_bits", "group", "scale_bytes"})
        if fields["name"] in found:
            raise FormatError("formats.yaml", None, "name", fields["name"], "be unique")
        found[fields["name"]] = StorageFormat(**fields)
    return found


def canonical_format(name: str, field: str = "dtype") -> str:
    """The one name of a format: `fp8_e4m3` and `fp8` are the same (public case A24). Raises UnknownNameError."""
    key = str(name).strip().lower().removeprefix("torch.")
    key = _ALIASES.get(key) or _ALIASES.get(key.replace("_", "-"), key)
    if key not in known_formats():
        raise UnknownNameError(field, str(name), {*known_formats(), *_ALIASES})
    return key


def storage_format(name: str, field: str = "dtype") -> StorageFormat:
    """The format named `name` (any alias). Raises UnknownNameError."""
    return known_formats()[canonical_format(name, field)]
