"""Compressed text as a ConfigMap's `binaryData` holds it: the same bytes each time."""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import zlib

LIMIT_BYTES = 1_000_000
"""Of one packed value; an object of etcd holds about 1 MiB."""
UNPACKED_LIMIT_BYTES = 64 * 1024 * 1024
"""A shard's words are input like any other: more than this is not ours."""


def pack(text: str) -> str:
    """Base64 of the compressed text."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def unpack(value: str) -> str:
    """The text of `pack`. Raises ValueError."""
    try:
        with gzip.open(io.BytesIO(base64.b64decode(value, validate=True))) as stream:
            raw = stream.read(UNPACKED_LIMIT_BYTES + 1)
    except (OSError, EOFError, zlib.error, binascii.Error) as error:
        raise ValueError(f"not compressed text: {type(error).__name__}") from error
    if len(raw) > UNPACKED_LIMIT_BYTES:
        raise ValueError(f"more than {UNPACKED_LIMIT_BYTES} bytes")
    return raw.decode()
