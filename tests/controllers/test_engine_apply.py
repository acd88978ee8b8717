"""Actions and their change sets."""

from __future__ import annotations

import json
from typing import Any

from inferasim_operator.engine import apply
from inferasim_operator.engine.actions import ApplyObject, ChangeKind, CreateObject, DeleteObject, Reference
from inferasim_operator.errors import ConflictError, NotOursError, UnavailableError, cluster_error
from tests.fake_cluster import FakeCluster


def _config_map(name: str = "cm", *, owner: str = "owner", **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "ns", "labels": {"inferasim.dev/owner-uid": owner}},
        "data": data,
    }


def _kinds(result: apply.ChangeSet) -> list[ChangeKind]:
    return [change.kind for change in result.changes]


def test_created_configured_unchanged_deleted() -> None:
    """Each outcome once; the unchanged ones write nothing."""
    cluster = FakeCluster()
    steps = [
        (CreateObject(_config_map()), ChangeKind.CREATED),
        (CreateObject(_config_map(a="other")), ChangeKind.UNCHANGED),
        (ApplyObject(_config_map(a="1")), ChangeKind.CONFIGURED),
        (ApplyObject(_config_map(a="1")), ChangeKind.UNCHANGED),
        (ApplyObject(_config_map("new")), ChangeKind.CREATED),
    ]
    for action, expected in steps:
        result = apply.carry_out(cluster, [action], owner_uid="owner")
        assert (_kinds(result), result.errors) == ([expected], [])
    assert cluster.writes == 3
    reference = Reference("v1", "ConfigMap", "ns", "cm")
    uid = cluster.get("v1", "ConfigMap", "ns", "cm")["metadata"]["uid"]
    assert _kinds(apply.carry_out(cluster, [DeleteObject(reference, "another")], owner_uid="owner")) == ["Unchanged"]
    assert _kinds(apply.carry_out(cluster, [DeleteObject(reference, uid)], owner_uid="owner")) == ["Deleted"]
    assert _kinds(apply.carry_out(cluster, [DeleteObject(reference, uid)], owner_uid="owner")) == ["Unchanged"]


def test_a_strangers_object_is_never_touched() -> None:
    """Neither by create nor by apply; the other actions go on, and the error is terminal."""
    cluster = FakeCluster(_config_map("taken", owner="somebody", keep="me"))
    actions = [
        CreateObject(_config_map("taken")),
        ApplyObject(_config_map("taken", a="1")),
        CreateObject(_config_map()),
    ]
    result = apply.carry_out(cluster, actions, owner_uid="owner")
    assert _kinds(result) == [ChangeKind.CREATED]
    assert [type(error) for error in result.errors] == [NotOursError, NotOursError]
    assert all(error.is_terminal for error in result.errors)
    assert cluster.get("v1", "ConfigMap", "ns", "taken")["data"] == {"keep": "me"}


def test_errors_are_kinds_with_cut_text() -> None:
    """The answer's Status is kept, other bodies are not (they may leak); managers of a conflict are named."""
    text = 'Apply failed with 1 conflict: conflict with "kubectl-edit" using apps/v1: .spec.replicas'
    conflict = cluster_error(409, json.dumps({"kind": "Status", "reason": "Conflict", "message": text}))
    assert isinstance(conflict, ConflictError)
    assert conflict.managers == ("kubectl-edit",)
    secret = cluster_error(502, "<html>token=abc</html>")
    assert isinstance(secret, UnavailableError)
    assert str(secret) == "HTTP 502"
    assert len(str(cluster_error(422, json.dumps({"kind": "Status", "message": "x" * 999})))) == 256
