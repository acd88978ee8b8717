"""Compile the kernel once and keep it on disk.

numba's own cache looks at one file's date, so a changed callee in another file would go unnoticed, and it refuses a
folder it cannot write. Here the stamp is a digest of the whole kernel, and a read-only folder (the container image's,
filled at build time) is read and never written.
"""

# mypy: disable-error-code="no-untyped-call, call-overload, attr-defined, assignment"
# (numba types neither its caching module nor the options used here)

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


class _Locator(caching._CacheLocator):
    """NUMBA_CACHE_DIR where it is set, else beside the sources."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        self._py_file = Path(py_file)
        self._line = py_func.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        # a folder per kernel version: indexes of another version may not even unpickle
        root = Path(config.CACHE_DIR) if config.CACHE_DIR else FOLDER / "__pycache__"
        return str(root / f"inferasim-kernel-{KERNEL_DIGEST[:12]}")

    def get_source_stamp(self) -> str:
        return KERNEL_DIGEST

    def get_disambiguator(self) -> str:
        return f"{self._py_file.stem}-{self._line}"

    def ensure_cache_path(self) -> None:
        Path(self.get_cache_path()).mkdir(parents=True, exist_ok=True)

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator:
        return cls(py_func, py_file)


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class _KernelCache(caching.FunctionCache):
    _impl_class = _Implementation

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a cache of another version may fail to unpickle in any way; compiling is always right
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception:
            return  # a read-only folder: this process compiles for itself


def _with_cache(dispatcher: Any, function: Function) -> Function:
    if hasattr(dispatcher, "_cache"):  # plain Python where NUMBA_DISABLE_JIT is set
        dispatcher._cache = _KernelCache(function)
    compiled_function: Function = dispatcher
    return compiled_function


def compiled(function: Function) -> Function:
    """`function` compiled by numba on first use, without the interpreter lock, cached on disk; for the kernel's use."""
    return _with_cache(numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function), function)


def entry(function: Function) -> Function:
    """As `compiled`, callable from Python."""
    return _with_cache(numba.njit(nogil=True)(function), function)
