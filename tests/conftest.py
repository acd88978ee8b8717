"""Marks by folder, property profiles, and the wall between unit tests and the network."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

# `fast` is what everyone runs; `thorough` is for a night. Derandomised: a red run is red for everybody.
settings.register_profile("fast", max_examples=60, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "thorough", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile(os.environ.get("INFERASIM_PROPERTY_PROFILE", "fast"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything under tests/integration needs the real control plane."""
    for item in items:
        if TESTS / "integration" in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit tests reach loopback at most."""
    if "integration" not in request.keywords:
        connect = socket.socket.connect

        def guarded(self: socket.socket, address: object) -> None:
            if self.family == socket.AF_UNIX or str(address[0]) in {"127.0.0.1", "::1", "localhost"}:  # type: ignore[index]
                return connect(self, address)  # type: ignore[arg-type]
            raise RuntimeError(f"a unit test tried to reach {address}")

        monkeypatch.setattr(socket.socket, "connect", guarded)
