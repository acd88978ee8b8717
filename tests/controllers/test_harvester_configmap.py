"""The ConfigMap mirror: plain HTTPS, one right, and no harm when it fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from inferasim_harvester.configmap import ConfigMap
from inferasim_harvester.progress import Progress
from inferasim_harvester.store import Points
from simcore.errors import InputError


class Server:
    """A ConfigMap behind a merge patch, and nothing else."""

    def __init__(self) -> None:
        self.data: dict[str, str] = {"points.json": "kept"}
        self.seen: list[httpx.Request] = []
        self.status = 200

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        if self.status != 200:
            return httpx.Response(self.status, json={"message": "no"})
        self.data |= json.loads(request.content).get("data", {})
        return httpx.Response(200, json={"kind": "ConfigMap", "data": self.data})


def mirror(server: Server, account: Path) -> ConfigMap:
    account.mkdir(exist_ok=True)
    (account / "token").write_text("secret-token\n")
    client = httpx.AsyncClient(transport=httpx.MockTransport(server), base_url="https://kubernetes.test")
    return ConfigMap("team-a/my-harvest-progress", client, account)


def test_reading_needs_no_get(tmp_path: Path) -> None:
    server = Server()
    assert asyncio.run(mirror(server, tmp_path).read()) == {"points.json": "kept"}
    (request,) = server.seen
    assert request.method == "PATCH"
    assert request.url.path == "/api/v1/namespaces/team-a/configmaps/my-harvest-progress"
    assert request.headers["content-type"] == "application/merge-patch+json"
    assert request.headers["authorization"] == "Bearer secret-token"
    assert json.loads(request.content) == {}


def test_writing_sets_keys_and_keeps_others(tmp_path: Path) -> None:
    server = Server()
    assert asyncio.run(mirror(server, tmp_path).write({"progress.json": "{}"}))
    assert server.data == {"points.json": "kept", "progress.json": "{}"}


def test_a_rotated_token_is_read_anew(tmp_path: Path) -> None:
    server = Server()
    written = mirror(server, tmp_path)

    async def twice() -> None:
        await written.write({})
        (tmp_path / "token").write_text("next")
        await written.write({})

    asyncio.run(twice())
    assert [request.headers["authorization"] for request in server.seen] == ["Bearer secret-token", "Bearer next"]


@pytest.mark.parametrize("status", [401, 403, 404, 409, 500])
def test_a_failed_write_does_not_stop_the_harvest(
    status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    server.status = status
    progress = Progress(tmp_path, lambda: 0.0, now=lambda: "now", mirror=mirror(server, tmp_path / "account"))

    async def two() -> None:
        await progress.say("one", "Decode", Points(tmp_path, "sha256:x"))
        await progress.say("two")

    asyncio.run(two())
    assert json.loads((tmp_path / "progress.json").read_text())["message"] == "two"
    assert capsys.readouterr().err.count("could not be written") == 1


@pytest.mark.parametrize("name", ["x", "a/b/c", "../x/y", "a/", "A/b", "a/b?x=1"])
def test_only_a_name_is_a_name(name: str) -> None:
    with pytest.raises(InputError, match="config-map"):
        ConfigMap(name, httpx.AsyncClient(transport=httpx.MockTransport(Server())))


def test_outside_a_pod_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InputError, match="inside a pod"):
        ConfigMap.in_cluster("a/b")
