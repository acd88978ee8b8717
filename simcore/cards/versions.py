"""An order of engine releases, for tables that are keyed by ranges of versions."""

from __future__ import annotations

import re
from typing import Final

from simcore.errors import InputError

_RELEASE: Final = re.compile(r"v?(\d+(?:\.\d+)*)(?:\.?post(\d+))?(?:[-+].*)?")


def version_key(text: str, field: str = "engineVersion") -> tuple[tuple[int, ...], int]:
    """What releases sort by; a build suffix after `-` or `+` does not count. Raises InputError on pre-releases.

    >>> version_key("v0.5.13.post1-rocm720") > version_key("0.5.13")
    True
    """
    match = _RELEASE.fullmatch(text.strip())
    if match is None:
        raise InputError(field, text, "be a release such as 0.33.0 or 0.5.13.post1")
    numbers = tuple(int(part) for part in match[1].split("."))
    return numbers + (0,) * (4 - len(numbers)), int(match[2] or 0)
