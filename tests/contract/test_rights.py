"""Every right of the operator is one that it has been seen to use, or that is held for a reason stated here.

`INFERASIM_RECORD=1 make integration` adds what the API server's audit log saw to tests/integration/rights_used.json.
"""

from __future__ import annotations

import json
from pathlib import Path

from inferasim_operator.engine.rbac import Rule
from inferasim_operator.kinds.registry import RULES

USED = Path(__file__).resolve().parents[1] / "integration" / "rights_used.json"
GIVEN_ON = "a Role gives on only what its author holds"
NOT_SERVED = "the control plane of the tests does not serve the kind; as for services, whose rights are seen"
HELD: dict[str, str] = {
    "httproutes.gateway.networking.k8s.io": NOT_SERVED,
    "inferencepools.inference.networking.k8s.io": NOT_SERVED,
    "leaderworkersets.leaderworkerset.x-k8s.io": NOT_SERVED,
    "podmonitors.monitoring.coreos.com": NOT_SERVED,
    "inferencemodelrewrites.llm-d.ai": GIVEN_ON,
    "inferenceobjectives.llm-d.ai": GIVEN_ON,
    "get pods": GIVEN_ON,
    "watch pods": GIVEN_ON,
    "patch configmaps": GIVEN_ON,
}
"""Right, or the resource that all of its rights are meant of, to the reason why no log shows it."""


def _rights(rule: Rule) -> set[str]:
    return {f"{verb} {rule.resource}{'.' if rule.group else ''}{rule.group}" for verb in rule.verbs}


def _given() -> set[str]:
    return set().union(*(_rights(rule) for rule in RULES))


def test_no_right_is_idle() -> None:
    used = set(json.loads(USED.read_text(encoding="utf-8")))
    idle = {right for right in _given() - used if right not in HELD and right.split()[1] not in HELD}
    assert idle == set(), "take it away, or say why it is held"


def test_no_excuse_is_stale() -> None:
    given, used = _given(), set(json.loads(USED.read_text(encoding="utf-8")))
    for held, why in HELD.items():
        meant = {right for right in given if held in (right, right.split()[1])}
        assert meant, f"{held} is not given"
        assert not meant <= used, f"{held} is seen in use"
        assert why
