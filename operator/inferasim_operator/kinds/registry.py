"""All kinds, in one list: what the process runs, and what the roles are made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferasim_operator.engine.kind import Kind
from inferasim_operator.engine.rbac import ENGINE_RULES, Rule
from inferasim_operator.engine.wiring import Wiring
from inferasim_operator.kinds.anchorharvest import handlers as anchorharvest
from inferasim_operator.kinds.anchorharvest import rbac as anchorharvest_rbac
from inferasim_operator.kinds.deploymentmix import handlers as deploymentmix
from inferasim_operator.kinds.deploymentmix import rbac as deploymentmix_rbac
from inferasim_operator.kinds.servingplan import handlers as servingplan
from inferasim_operator.kinds.servingplan import rbac as servingplan_rbac

KINDS: tuple[tuple[Kind[Any], Callable[[Any, Wiring], None]], ...] = (
    (anchorharvest.KIND, anchorharvest.register),
    (servingplan.KIND, servingplan.register),
    (deploymentmix.KIND, deploymentmix.register),
)
"""Each kind with the function that registers its kopf handlers."""

RULES: tuple[Rule, ...] = (
    *ENGINE_RULES,
    *anchorharvest_rbac.RULES,
    *servingplan_rbac.RULES,
    *deploymentmix_rbac.RULES,
)

WATCHED = ("configmaps", "jobs", "deployments")
"""Plurals that are watched beside the kinds themselves."""
