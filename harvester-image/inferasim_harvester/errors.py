"""Why a harvest ended without an anchor. The reason is a stable word of docs/harvest-protocol.md."""

from __future__ import annotations

from simcore.errors import InferasimError


class HarvestError(InferasimError):
    """Base: `reason` goes into result.json, `message` is one line for people."""

    reason = "Internal"


class EngineStartError(HarvestError):
    """The engine's process ended, or could not be started, before it gave a token."""

    reason = "EngineStartFailed"


class EngineNotReadyError(HarvestError):
    """No token came in the time allowed, whatever /health says (public case A20)."""

    reason = "EngineNotReady"


class EngineDiedError(HarvestError):
    """The engine, or one of its workers, stopped giving tokens in mid-sweep."""

    reason = "EngineDied"


class RequestFailedError(HarvestError):
    """The engine answered a request with an error."""

    reason = "RequestFailed"


class MeasurementFailedError(HarvestError):
    """Answers came, but no step time can be read from them."""

    reason = "MeasurementFailed"
