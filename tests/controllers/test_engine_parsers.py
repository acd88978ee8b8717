"""Emitted command lines through the engines' own parsers, of published packages (`make engine-parsers`)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import engine_parsers
from inferasim_operator.cli.render import render_document
from simcore.errors import InputError

GOLDEN = Path(__file__).parents[1] / "golden/manifests"
CASES = sorted(path.parent for path in GOLDEN.glob("*/mix.yaml"))
NODE = {"$(LWS_WORKER_INDEX)": "1", "$(LWS_LEADER_ADDRESS)": "10.0.0.1"}
"""What Kubernetes puts in before a process sees it."""
ATTENTION = "of the engine"
BACKENDS = {"VLLM": "TRITON_ATTN", "SGLang": "aiter"}
LEVERS: list[dict[str, Any]] = [
    {"speculation": {"method": "EAGLE3", "draftTokens": 3, "draftModel": "org/draft"}},
    {"speculation": {"method": "MTP", "draftTokens": 2}},
    {"speculation": {"method": "NGram", "draftTokens": 4}},
    {"maxGraphBatch": 256},
    {"graphCaptureSizes": [1, 2, 4, 8]},
    {"kvDtype": "fp8", "blockSize": 64, "memoryPermille": 925},
    {"chunkTokens": 4096},
    {"kvOffload": {"hostGibibytes": 64}},
    {"attentionBackend": ATTENTION},
    {"moeBackend": "triton"},
    {"allToAll": "AllGatherReduceScatter"},
    {"allToAll": "MoRILowLatency"},
    {"allToAll": "MoRI"},
    {"redundantExperts": 16},
    {"prefixCaching": "Disabled"},
]


def documents(engine: str, version: str) -> list[dict[str, Any]]:
    """Every golden mix of the engine, and one lever at a time on it, at this version."""
    found = []
    for folder in CASES:
        document = yaml.load((folder / "mix.yaml").read_text(), yaml.CSafeLoader)
        configuration = document["spec"]["configurations"][0]["configuration"]
        if configuration["engine"] != engine:
            continue
        configuration["engineVersion"] = version
        for change in ({}, *LEVERS):
            changed = copy.deepcopy(document)
            own = {name: BACKENDS[engine] if value == ATTENTION else value for name, value in change.items()}
            changed["spec"]["configurations"][0]["configuration"] |= own
            found.append(changed)
    return found


def command_lines(engine: str, version: str) -> list[list[str]]:
    """Arguments of all engine containers; what this version has no flag for is refused before, and not here."""
    lines = []
    for document in documents(engine, version):
        try:
            manifests = render_document(document)
        except InputError:
            continue
        for manifest in manifests:
            spec = manifest.get("spec", {})
            group = spec.get("leaderWorkerTemplate", {})
            names = ("template", "leaderTemplate", "workerTemplate")
            for pod in (holder[name] for holder in (spec, group) for name in names if name in holder):
                container = pod["spec"]["containers"][0]
                if container["name"] == "modelserver":
                    lines.append([expanded(argument) for argument in container["args"]])
    return [list(line) for line in dict.fromkeys(map(tuple, lines))]


def expanded(argument: str) -> str:
    for name, value in NODE.items():
        argument = argument.replace(name, value)
    return argument


def stated(line: list[str]) -> dict[str, Any]:
    """Flag to what it says: a word, a list of words, or True."""
    found: dict[str, Any] = {}
    for token in line:
        if token.startswith("--"):
            name, equals, value = token.partition("=")
            found[name] = value if equals else True
        elif found:
            last = next(reversed(found))
            found[last] = [*(found[last] if isinstance(found[last], list) else []), token]
    return found


def is_same(parsed: Any, said: Any) -> bool:
    """Whether the parser holds what the command line said, in its own type."""
    if isinstance(parsed, bool) or isinstance(said, bool):
        return parsed is said
    if isinstance(parsed, dict):
        wanted = json.loads(said)
        return all(name in parsed and is_same(parsed[name], _text(value)) for name, value in wanted.items())
    if isinstance(parsed, list):
        return bool([str(item) for item in parsed] == (said if isinstance(said, list) else [said]))
    if isinstance(parsed, float):
        return bool(parsed == float(said))
    return bool(str(parsed) == said)


def _text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value if isinstance(value, bool) else str(value)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "version"), list(engine_parsers.PACKAGES))
def test_the_engines_own_parser_reads_what_is_emitted(engine: str, version: str) -> None:
    why = engine_parsers.missing(engine, version)
    if why:
        pytest.skip(why)
    lines = command_lines(engine, version)
    assert len(lines) > 20
    broken = [*lines[0], "--no-such-flag=1"]
    *answers, refused = engine_parsers.parse(engine, version, [*lines, broken])
    assert "no-such-flag" in refused["refused"], "the parser can say no"
    for line, answer in zip(lines, answers, strict=True):
        assert "refused" not in answer, (line, answer)
        for flag, said in stated(line).items():
            name = flag.removeprefix("--").replace("-", "_")
            if name not in answer and said is True:
                name, said = name.removeprefix("no_"), False
            if name in answer:
                assert is_same(answer[name], said), (flag, said, answer[name])
