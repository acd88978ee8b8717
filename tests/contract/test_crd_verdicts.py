"""Manifests that must be accepted, and ones that must be refused: here by the types, in the integration tests by the
real API server. Both must say the same of every file."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pydantic
import pytest
import yaml

from inferasim_harvester.spec import parse_spec
from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest
from inferasim_operator.api.v1alpha1.common import unknown_fields
from inferasim_operator.api.v1alpha1.deploymentmix import DeploymentMix
from inferasim_operator.api.v1alpha1.servingplan import ServingPlan
from inferasim_operator.kinds.anchorharvest import render

HERE = pathlib.Path(__file__).parent
MODELS: dict[str, Any] = {"AnchorHarvest": AnchorHarvest, "DeploymentMix": DeploymentMix, "ServingPlan": ServingPlan}


def _mine(folder: str) -> list[pathlib.Path]:
    """The files of the kinds above."""
    return [
        path
        for path in sorted((HERE / folder).glob("*.yaml"))
        if yaml.safe_load(path.read_text(encoding="utf-8"))["kind"] in MODELS
    ]


def _problem(manifest: dict[str, Any]) -> str:
    model = MODELS[manifest["kind"]]
    unknown = unknown_fields(type(model.model_construct()).model_fields["spec"].annotation, manifest["spec"], "spec")
    if unknown:
        return f'unknown field "{next(iter(unknown))}"'
    try:
        model.model_validate(manifest)
    except pydantic.ValidationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("path", _mine("accept"), ids=lambda path: path.stem)
def test_types_accept(path: pathlib.Path) -> None:
    """The types take it, and give back the same spec: nothing is defaulted or dropped (D02)."""
    manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert _problem(manifest) == ""
    parsed = MODELS[manifest["kind"]].model_validate(manifest)
    assert parsed.spec.to_dict() == manifest["spec"]


@pytest.mark.parametrize("path", _mine("reject"), ids=lambda path: path.stem)
def test_types_refuse(path: pathlib.Path) -> None:
    """The types refuse it."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# expect: ")
    assert _problem(yaml.safe_load(text)) != ""


def test_harvester_reads_what_the_operator_tells_it() -> None:
    """The two sides of docs/harvest-protocol.md: every accepted harvest is a spec that the harvester's parser takes."""
    for path in _mine("accept"):
        manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
        if manifest["kind"] != "AnchorHarvest":
            continue
        harvest = AnchorHarvest.model_validate(manifest)
        told = parse_spec(json.dumps(render.harvester_spec(harvest)))
        assert told.engine.name.value == manifest["spec"]["engine"]["name"]
        assert told.layout.tensor_parallel == manifest["spec"].get("layout", {}).get("tensorParallel", 1)
