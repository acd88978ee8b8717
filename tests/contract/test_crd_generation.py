"""The CRDs are what the types say; the generator refuses what must not be in our API, with the path."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from inferasim_operator.api.v1alpha1.common import ApiModel, Rule, justified_boolean, map_list
from tools import crdgen, rbacgen


def test_committed_crds_are_current() -> None:
    """`make generate` has been run."""
    assert crdgen.main(["--check"]) == 0


def test_committed_rules_are_current() -> None:
    """`make generate` has been run."""
    assert rbacgen.main(["--check"]) == 0


def test_rules_hold_no_wildcard_and_list_no_secret() -> None:
    """Least privilege: named verbs on named resources; a Secret is read by the name that a spec gives, never listed."""
    for rule in rbacgen.policy_rules(rbacgen.RULES):
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert "secrets" not in rule["resources"] or rule["verbs"] == ["get"]


class _Inner(ApiModel):
    """Inside."""

    name: Annotated[str, Field(max_length=5)]


class _Good(ApiModel):
    """Everything that is allowed."""

    rules: ClassVar[tuple[Rule, ...]] = (Rule("has(self.kind)", "must be", lambda m: True),)
    kind: Literal["One"]
    above: Annotated[int, Field(gt=0, lt=10)]
    items: Annotated[tuple[_Inner, ...], Field(max_length=3)] | None = Field(
        default=None, json_schema_extra=map_list("name")
    )


def test_conversion() -> None:
    """References inlined, optional unwrapped, const to enum, exclusive bounds to inclusive, rules in; by hand."""
    assert crdgen.structural(_Good.model_json_schema(by_alias=True)) == {
        "type": "object",
        "description": "Everything that is allowed.",
        "required": ["above", "kind"],
        "properties": {
            "kind": {"type": "string", "enum": ["One"]},
            "above": {"type": "integer", "minimum": 1, "maximum": 9},
            "items": {
                "type": "array",
                "maxItems": 3,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {
                    "type": "object",
                    "description": "Inside.",
                    "required": ["name"],
                    "properties": {"name": {"type": "string", "maxLength": 5}},
                },
            },
        },
        "x-kubernetes-validations": [{"rule": "has(self.kind)", "message": "must be"}],
    }


_Text = Annotated[str, Field(max_length=5)]


class _Loop(ApiModel):
    """Contains itself."""

    inner: _Loop | None = None


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "float": (float, ..., ".x: floats"),
    "union": (_Text | int, ..., ".x: a union of 2 types"),
    "text": (str, ..., ".x: a string must have a largest length"),
    "list": (tuple[_Text, ...], ..., ".x: a list must have a largest size"),
    "untyped-list": (Annotated[tuple[_Text, ...], Field(max_length=2)], ..., ".x: a list must say its list-type"),
    "tuple": (tuple[_Text, _Text], ..., ".x: keyword `prefixItems`"),
    "boolean": (bool, ..., ".x: a boolean must say why"),
    "integer": (int, ..., ".x: an integer must have both bounds"),
    "map": (dict[str, _Text], ..., ".x: a map must have a largest size"),
    "look-ahead": (Annotated[str, Field(max_length=5, json_schema_extra={"pattern": "a(?=b)"})], ..., ".x: the API"),
    "recursion": (_Loop, ..., "_Loop contains itself"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    """Each forbidden shape is refused with its path."""
    annotation, default, fragment = REFUSED[case]
    model = type("Model", (ApiModel,), {"__annotations__": {"x": annotation}, "__module__": __name__})
    assert default is ...
    with pytest.raises(crdgen.SchemaError) as caught:
        crdgen.structural(model.model_json_schema(by_alias=True))
    assert fragment in str(caught.value)


def test_justified_boolean_passes() -> None:
    """A boolean with a reason is let through, and the reason does not reach the CRD."""

    class Model(ApiModel):
        """One boolean."""

        x: bool = Field(json_schema_extra=justified_boolean("Kubernetes has it"))

    assert crdgen.structural(Model.model_json_schema(by_alias=True))["properties"]["x"] == {"type": "boolean"}
