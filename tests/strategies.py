"""Hypothesis strategies for API objects; a new field of a type is added here, so that old tests see it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from inferasim_operator.api.v1alpha1.anchorharvest import CheckVerdict
from simcore.cards.layout import Engine
from tests import builders

words = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,20}[A-Za-z0-9])?", fullmatch=True)
names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,80}[a-z0-9])?", fullmatch=True)
widths = st.sampled_from([1, 2, 4, 8])
engines = st.sampled_from([engine.value for engine in Engine])


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping with any subset of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


layouts = _some(
    tensorParallel=widths,
    pipelineParallel=widths,
    dataParallel=widths,
    expertParallel=widths,
    attentionDataParallel=widths,
)
tiers = st.builds(
    lambda name, limits: {"name": name, **limits},
    words,
    _some(ttftMilliseconds=st.integers(1, 60_000), tokensPerSecondPerUser=st.integers(1, 500)),
)
models = st.one_of(
    st.builds(lambda name: {"name": name}, words), st.builds(lambda name: {"configMap": {"name": name}}, names)
)


@st.composite
def serving_plans(draw: st.DrawFn) -> dict[str, Any]:
    """ServingPlans over all fields."""
    chosen = draw(st.lists(engines, min_size=1, max_size=3, unique=True))
    optional = draw(
        _some(
            anchors=_some(mode=st.sampled_from(["Anchored", "Simulate", "Auto"]), matchLabels=st.just({"team": "a"})),
            suspend=st.booleans(),
            rerun=words,
        )
    )
    return builders.serving_plan(
        draw(names),
        model=draw(models),
        cluster={"accelerator": draw(words), "nodes": draw(st.integers(1, 64)), "gpuBudget": draw(st.integers(1, 512))},
        engines=[
            {"name": name, **draw(_some(version=words, layouts=st.lists(layouts, min_size=1, max_size=3)))}
            for name in chosen
        ],
        load={"concurrencies": draw(st.lists(st.integers(1, 4096), min_size=1, max_size=5))},
        tiers=draw(st.none() | st.lists(tiers, min_size=1, max_size=4, unique_by=lambda tier: tier["name"])),
        **optional,
    )


@st.composite
def anchor_harvests(draw: st.DrawFn) -> dict[str, Any]:
    """AnchorHarvests over all fields that decide something."""
    optional = draw(
        _some(
            layout=_some(tensorParallel=widths, expertParallel=widths),
            suspend=st.booleans(),
            rerun=words,
            deadlineSeconds=st.integers(60, 7200),
            sweeps=_some(decodeBatches=st.lists(st.integers(1, 512), min_size=1, max_size=4)),
            signature=_some(kvDtype=words, graphCapture=st.sampled_from(["Enabled", "Disabled"])),
            pod=_some(nodeSelector=st.just({"pool": "gpu"}), queueName=st.just("gpus"), serviceAccountName=names),
        )
    )
    engine = {"name": draw(engines), "version": draw(words), "image": "example.test/engine:1"}
    return builders.anchor_harvest(draw(names), engine=engine, **optional)


verdicts = st.sampled_from(list(CheckVerdict))
