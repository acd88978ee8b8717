"""What the levers offer and what emission can write are the same facts, stated in two places for two layers."""

from __future__ import annotations

import pytest

from inferasim_operator.emit.flagmap import flag_map
from simcore.cards.layout import Engine
from simcore.search.levers import Source, levers

VERSIONS = {
    Engine.VLLM: ("0.20.2", "0.23.0", "0.27.1", "0.33.0"),
    Engine.SGLANG: ("0.5.13", "0.5.16", "0.5.23"),
    Engine.ATOM: ("0.1.4",),
}
WORDS = {"disaggregation.backend": "disaggregation.backend", "allToAll": "allToAll", "kvDtype": "kvDtype"}
NOT_FLAGS = {"routing", "collectives"}
"""Levers of the router, and of the price alone."""


@pytest.mark.parametrize(("engine", "version"), [(e, v) for e, versions in VERSIONS.items() for v in versions])
def test_every_value_of_the_table_has_a_flag(engine: Engine, version: str) -> None:
    flags = flag_map(engine, version)
    for name, lever in levers().items():
        if lever.rule is not Source.TABLE or name in NOT_FLAGS:
            continue
        others = [value for value in lever.values(engine, version) if value != lever.neutral]
        assert not others or name in flags.lever_names(), f"{name} has no flag on {engine.value} {version}"
        if name in flags.unsupported:
            assert not others, f"{name} is unsupported: {flags.unsupported[name]}"


@pytest.mark.parametrize("engine", list(Engine))
def test_words_are_words_that_the_flag_knows(engine: Engine) -> None:
    version = VERSIONS[engine][-1]
    text = str([form.__dict__ for form in flag_map(engine, version).forms])
    for name in WORDS:
        for value in levers()[name].values(engine, version):
            if value != levers()[name].neutral:
                assert f"'{value}'" in text, f"{name}={value} is unknown to the flags of {engine.value}"
