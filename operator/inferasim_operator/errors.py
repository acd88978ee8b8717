"""The operator's errors, one tree under simcore's.

InferasimError (simcore)
└── OperatorError          `reason` is the condition reason; `is_terminal` = retrying cannot cure it (Stalled)
    ├── ClusterError       the API server's answer: HTTP `status`, text cut to 256 characters (bodies may leak secrets)
    │   ├── NotFoundError        404
    │   ├── AlreadyExistsError   409 on create
    │   ├── ConflictError        409: another field manager, or a precondition; names the managers
    │   ├── ForbiddenError       401, 403
    │   ├── InvalidError         400, 413, 422: the request itself is wrong (terminal)
    │   ├── OutdatedCrdError     500: the cluster's CRD of ours is older than this operator
    │   └── UnavailableError     410, 429, 5xx, no connection: try later
    ├── NotOursError       an object with the wanted name belongs to somebody else (terminal)
    └── LeaseLostError     another instance leads: this process must end
"""

from __future__ import annotations

import json
import re

from simcore.errors import InferasimError

BODY_LENGTH = 256
CRDS_COMMAND = "`helm upgrade --install` of the chart with crds.install=true, or kubectl apply --server-side -f crds/"
"""Both ways to the CRDs, for whoever meets a cluster without them or with older ones."""
_UNDECLARED = re.compile(r"\.(\S+): field not declared in schema")


class OperatorError(InferasimError):
    """Base of all errors of the operator."""

    reason = "InternalError"
    is_terminal = False


class ClusterError(OperatorError):
    """The API server refused or did not answer."""

    reason = "ClusterError"

    def __init__(self, message: str, *, status: int = 0) -> None:
        self.status = status
        super().__init__(message if len(message) <= BODY_LENGTH else message[: BODY_LENGTH - 1] + "…")


class NotFoundError(ClusterError):
    """No such object, or no such kind."""

    reason = "NotFound"


class AlreadyExistsError(ClusterError):
    """An object of that name exists."""

    reason = "AlreadyExists"


class ConflictError(ClusterError):
    """Another field manager owns a field that we set, or a precondition failed."""

    reason = "Conflict"

    def __init__(self, message: str, *, status: int = 409) -> None:
        self.managers = tuple(dict.fromkeys(re.findall(r'conflicts? with "([^"]+)"', message)))
        super().__init__(message, status=status)


class ForbiddenError(ClusterError):
    """RBAC or admission said no."""

    reason = "Forbidden"


class InvalidError(ClusterError):
    """The object that we sent breaks a rule of the API server."""

    reason = "Rejected"
    is_terminal = True


class OutdatedCrdError(ClusterError):
    """The cluster's CRD lacks a field that this version writes (D03); a new CRD cures it, so it is tried again."""

    reason = "CrdOutdated"


class UnavailableError(ClusterError):
    """The API server is overloaded, broken or not reachable."""

    reason = "ClusterUnavailable"


class NotOursError(OperatorError):
    """An object with the wanted name exists and was not made for this owner."""

    reason = "NameTaken"
    is_terminal = True


class LeaseLostError(OperatorError):
    """This process no longer leads."""

    reason = "LeaseLost"


def cluster_error(status: int, body: str) -> ClusterError:
    """The error for an HTTP answer; only the text of a real Kubernetes Status is kept of the body."""
    message, reason = f"HTTP {status}", ""
    try:
        answer = json.loads(body)
        if isinstance(answer, dict) and answer.get("kind") == "Status":
            message, reason = str(answer.get("message") or message), str(answer.get("reason") or "")
    except (ValueError, RecursionError):
        pass
    undeclared = _UNDECLARED.search(message)
    if undeclared is not None:
        # The API server says 500 of a server-side apply that its schema does not know, whose CRD it ever is.
        if "inferasim.dev/" not in message:
            return InvalidError(message, status=status)
        return OutdatedCrdError(f"the cluster's CRD lacks {undeclared[1]}; update it: {CRDS_COMMAND}", status=status)
    kinds: dict[int, type[ClusterError]] = {
        400: InvalidError,
        401: ForbiddenError,
        403: ForbiddenError,
        404: NotFoundError,
        409: AlreadyExistsError if reason == "AlreadyExists" else ConflictError,
        410: UnavailableError,  # the token of a long list has expired; as NotFound it would read as an empty list
        413: InvalidError,
        422: InvalidError,
        429: UnavailableError,
    }
    # A create into a namespace that is being deleted is a 403 that time cures; so is every 403 when a role is mended.
    kind = kinds.get(status, UnavailableError if status >= 500 else ClusterError)
    return kind(message, status=status)
