"""Compile the kernel once and keep it on disk.

numba's own cache looks at one file's date, so a changed callee in another file would go unnoticed, and it refuses a
folder it cannot write. Here the stamp is a digest of the whole kernel, and a read-only folder (the container image's,
filled at build time) is read and never written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import caching, config

Function = TypeVar("Function", bound=Callable[..., Any])

FOLDER = Path(__file__).parent


def _digest() -> str:
    text = hashlib.sha256()
    for path in sorted(FOLDER.glob("*.py")):
        text.update(path.name.encode())
        text.update(path.read_bytes())
    return text.hexdigest()


KERNEL_DIGEST = _digest()


class _Locator(caching._CacheLocator):  # type: ignore[misc]
    """NUMBA_CACHE_DIR where it is set, else beside the sources."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        self._py_file = Path(py_file)
        self._line = py_func.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        if config.CACHE_DIR:
            return str(Path(config.CACHE_DIR) / "inferasim_kernel")
        return str(FOLDER / "__pycache__")

    def get_source_stamp(self) -> str:
        return KERNEL_DIGEST

    def get_disambiguator(self) -> str:
        return f"{self._py_file.stem}-{self._line}"

    def ensure_cache_path(self) -> None:
        Path(self.get_cache_path()).mkdir(parents=True, exist_ok=True)

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator:
        return cls(py_func, py_file)


class _Implementation(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [_Locator]


class _KernelCache(caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _Implementation

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except OSError:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError:
            return  # a read-only folder: this process compiles for itself


def compiled(function: Function) -> Function:
    """`function` compiled by numba on first use, without the interpreter lock, cached on disk."""
    dispatcher = numba.njit(nogil=True)(function)
    if hasattr(dispatcher, "_cache"):  # plain Python where NUMBA_DISABLE_JIT is set
        dispatcher._cache = _KernelCache(function)
    return dispatcher  # type: ignore[no-any-return]
