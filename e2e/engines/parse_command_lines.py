"""Asks an engine's own parser about command lines: `python parse_command_lines.py ENGINE VERSION < JSON`.

Runs in the environment of `e2e.cpu_engine`, with one package's folder first on the path. What a parser's imports want
and the environment has not is stood in for: nothing of it is called.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import io
import json
import sys
import types
from collections.abc import MutableSequence
from typing import Any

ABSENT = frozenset({"IPython", "orjson", "torchvision", "triton"} if "SGLang" in sys.argv else ())
_ANY_VERSION = "0.99.0"


class _Nothing(type):
    """A class of which everything may be asked."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {})

    def __call__(cls, *_: Any, **__: Any) -> Any:
        return cls


class _Module(types.ModuleType):
    __path__: MutableSequence[str] = []  # noqa: RUF012 - what an import system asks for
    __version__ = _ANY_VERSION

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, _: object, __: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ABSENT else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def _sglang() -> argparse.ArgumentParser:
    # Older packages register model types that this transformers has by itself.
    configs = importlib.import_module("transformers").AutoConfig
    register = configs.register
    configs.register = staticmethod(lambda *names, **options: register(*names, **{**options, "exist_ok": True}))
    server_args = importlib.import_module("sglang.srt.server_args").ServerArgs
    parser = argparse.ArgumentParser()
    server_args.add_cli_args(parser)
    return parser


def _vllm() -> argparse.ArgumentParser:
    flexible = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    for place in ("common", "launchers", "openai"):
        with contextlib.suppress(ModuleNotFoundError, AttributeError):
            made: argparse.ArgumentParser = importlib.import_module(
                f"vllm.entrypoints.{place}.cli_args"
            ).make_arg_parser(flexible())
            return made
    raise SystemExit("this vLLM has its arguments elsewhere")


def _read(parser: argparse.ArgumentParser, line: list[str]) -> dict[str, Any]:
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            found = parser.parse_args(line)
    except (SystemExit, ValueError) as error:
        return {"refused": told.getvalue()[-500:] or str(error)}
    return {name: value if _is_plain(value) else _fields(value) for name, value in vars(found).items()}


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool | type(None)) or (
        isinstance(value, list) and all(_is_plain(item) for item in value)
    )


def _fields(value: object) -> Any:
    """A configuration object as what it holds; anything else as its text."""
    if isinstance(value, dict):
        return {str(name): item if _is_plain(item) else _fields(item) for name, item in value.items()}
    held = getattr(value, "__dict__", None)
    return (
        {name: item for name, item in held.items() if _is_plain(item) or isinstance(item, dict)}
        if held
        else repr(value)
    )


def main() -> None:
    """One JSON line: a record per command line."""
    engine, version = sys.argv[1:]
    sys.meta_path.insert(0, _Finder())
    real = importlib.metadata.version
    # vLLM asks its version whether it is a build for CPUs, and else for a device.
    versions = {"vllm": f"{version}+cpu", **dict.fromkeys(ABSENT, _ANY_VERSION)}
    importlib.metadata.version = lambda distribution_name: versions.get(distribution_name) or real(distribution_name)
    parser = _sglang() if engine == "SGLang" else _vllm()
    print(json.dumps([_read(parser, line) for line in json.load(sys.stdin)], default=repr))


if __name__ == "__main__":
    main()
