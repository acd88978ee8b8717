"""Names and digests of what the operator makes: legal, at most 63 characters, never the same for two owners (D08)."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

MAX_LENGTH = 63
HASH_LENGTH = 10


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """A name-safe digest of a JSON-able value: 40 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:40]


def object_name(base: str, *suffixes: str) -> str:
    """`base-suffix…` as a DNS label; when too long, the base is cut and a hash of the whole base is put in.

    Two long bases that share their first characters still get two names.
    """
    clean = re.sub(r"[^a-z0-9-]+", "-", base.lower()).strip("-") or "x"
    tail = "".join(f"-{suffix}" for suffix in suffixes)
    if clean == base and len(clean) + len(tail) <= MAX_LENGTH:
        return clean + tail
    mark = hashlib.sha256(base.encode()).hexdigest()[:HASH_LENGTH]
    room = MAX_LENGTH - len(tail) - HASH_LENGTH - 1
    return f"{clean[:room].rstrip('-')}-{mark}{tail}"


def label_value(text: str) -> str:
    """A legal label value that stands for `text`; cut and hashed when too long."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")
    if clean == text and len(clean) <= MAX_LENGTH:
        return clean
    mark = hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]
    return f"{clean[: MAX_LENGTH - HASH_LENGTH - 1].rstrip('-._')}-{mark}".lstrip("-")
