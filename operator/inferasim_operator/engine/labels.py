"""Labels and owner references of what the operator makes.

Only our own: the parent's labels and annotations are never copied, because GitOps tools track their objects by them and
would prune ours (D01).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferasim_operator.api.v1alpha1.common import GROUP
from inferasim_operator.engine import names

MANAGER = "inferasim-operator"
MANAGED_BY = "app.kubernetes.io/managed-by"
OWNER_KIND = f"{GROUP}/owner-kind"
OWNER_NAME = f"{GROUP}/owner-name"
OWNER_UID = f"{GROUP}/owner-uid"
ROLE = f"{GROUP}/role"
ANCHOR = f"{GROUP}/anchor"
"""`true` on the ConfigMap of an anchor that plans may use; `refused` on one that failed a check."""


def child_labels(owner: Mapping[str, Any], *, role: str) -> dict[str, str]:
    """Labels of an object made for `owner` (a live object); `role` tells the owner's children apart."""
    metadata = owner["metadata"]
    return {
        MANAGED_BY: MANAGER,
        OWNER_KIND: str(owner["kind"]),
        OWNER_NAME: names.label_value(str(metadata["name"])),
        OWNER_UID: str(metadata["uid"]),
        ROLE: role,
    }


def owned_by(owner: Mapping[str, Any], *, role: str = "") -> str:
    """The label selector for the children of a live object."""
    selector = f"{OWNER_UID}={owner['metadata']['uid']}"
    return f"{selector},{ROLE}={role}" if role else selector


def owner_reference(owner: Mapping[str, Any]) -> dict[str, Any]:
    """The owner reference to a live object: Kubernetes deletes the child with it; no finalizer is needed (C04)."""
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


def child_metadata(owner: Mapping[str, Any], name: str, role: str) -> dict[str, Any]:
    """The metadata of an object made for `owner`, in its namespace."""
    return {
        "name": name,
        "namespace": owner["metadata"]["namespace"],
        "labels": child_labels(owner, role=role),
        "ownerReferences": [owner_reference(owner)],
    }


def is_owned(child: Mapping[str, Any], owner_uid: str) -> bool:
    """Whether a live object was made for the owner with this uid."""
    metadata = child["metadata"]
    references = metadata.get("ownerReferences") or ()
    if any(reference.get("uid") == owner_uid for reference in references):
        return True
    return bool((metadata.get("labels") or {}).get(OWNER_UID) == owner_uid)
