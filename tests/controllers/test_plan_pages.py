"""The operator's read-only page: what it lists, whom it answers, how often it asks the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from inferasim_operator import plan_pages, settings
from inferasim_operator.engine.web import Reply, Request, parse
from inferasim_operator.kinds.servingplan import render
from inferasim_operator.report import html
from simcore.errors import InputError
from tests import builders
from tests.controllers.test_report_pages import RESULT
from tests.fake_cluster import FakeCluster
from tests.page_rules import assert_page

DIGEST = "sha256:0123456789abcdef"
PLAN = builders.live(
    builders.serving_plan("chat", "team"),
    uid="uid-chat",
    conditions=[{"type": "Ready", "status": "True", "reason": "PlanFound", "message": "<b>found</b>"}],
    observedGeneration=1,
    summary="1 of 2 tiers",
    inputDigest=DIGEST,
    result={"configMap": render.result_name("chat", DIGEST)},
)
FRESH = builders.live(builders.serving_plan("fresh", "team"), uid="uid-fresh")


def cluster() -> FakeCluster:
    harvest = builders.live(builders.anchor_harvest("tp4", "team"), uid="uid-tp4")
    other = builders.live(builders.serving_plan("secret", "other"), uid="uid-other")
    return FakeCluster(PLAN, FRESH, harvest, other, render.result_config_map(PLAN, DIGEST, RESULT))


def ask(path: str, client: FakeCluster | None = None, *, host: str = "localhost", method: str = "GET") -> Reply:
    pages = plan_pages.PlanPages(client or cluster(), ("team",))
    return asyncio.run(pages.reply(Request(method, path, host)))


def test_the_list_shows_what_is_served_with_links_to_answers() -> None:
    reply = ask("/")
    assert reply.status == "200 OK"
    dom = assert_page(reply.body.decode())
    assert [found["href"] for found in dom.attributes("a") if found["href"].startswith("/")] == ["/plans/team/chat"]
    text = reply.body.decode()
    assert "&lt;b&gt;found&lt;/b&gt;" in text
    assert "secret" not in text, "another namespace is not served"
    assert dom.text("h2") == ["Plans", "Harvests"]


def test_the_page_of_a_plan_is_that_of_its_result() -> None:
    reply = ask("/plans/team/chat")
    assert reply.status == "200 OK"
    assert assert_page(reply.body.decode()).text("h1") == ["Llama-3.1-8B: serving plan chat"]


@pytest.mark.parametrize(
    ("path", "host", "status", "fragment"),
    [
        ("/plans/team/fresh", "localhost", 404, "no operator has looked at it yet"),
        ("/plans/team/nobody", "localhost", 404, "not found"),
        ("/plans/other/secret", "localhost", 404, "not served"),
        ("/plans/team/..%2f..%2fsecrets", "localhost", 404, "not found"),
        ("/plans/team/chat/more", "localhost", 404, "not found"),
        ("/", "evil.example", 421, "loopback only"),
        ("/", "", 421, "loopback only"),
    ],
)
def test_what_is_not_there_is_one_plain_line(path: str, host: str, status: int, fragment: str) -> None:
    reply = ask(path, host=host)
    assert int(reply.status.split()[0]) == status
    assert reply.kind.startswith("text/plain")
    assert fragment in reply.body.decode()


def test_an_answer_of_another_form_is_told() -> None:
    client = cluster()
    client.put(render.result_config_map(PLAN, DIGEST, {"feasible": True}))
    assert "has another form" in ask("/plans/team/chat", client).body.decode()


def test_a_crowd_of_readers_is_one_reading() -> None:
    client, now = cluster(), [100.0]
    reads = 0
    real: Callable[..., Any] = client.list

    def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal reads
        reads += 1
        return real(*arguments, **more)

    client.list = counted  # type: ignore[method-assign]

    async def scenario() -> None:
        pages = plan_pages.PlanPages(client, ("team",), clock_s=lambda: now[0])
        await asyncio.gather(*(pages.reply(Request("GET", "/", "localhost")) for _ in range(20)))
        assert reads == 3, "one per kind"
        now[0] += plan_pages.FRESH_S + 1
        await pages.reply(Request("GET", "/", "localhost"))
        assert reads == 6

    asyncio.run(scenario())


def test_more_objects_than_the_page_shows_are_counted() -> None:
    many = [builders.live(builders.serving_plan(f"p{n:04}", "team"), uid=f"u{n}") for n in range(503)]
    text = ask("/", FakeCluster(*many)).body.decode()
    assert "3 more are not shown" in text


def test_over_http_with_its_headers_and_for_reading_only() -> None:
    async def scenario() -> None:
        server = plan_pages.PlanPages(cluster(), ("team",)).server(0)
        port = await server.start()
        async with httpx.AsyncClient(trust_env=False, base_url=f"http://127.0.0.1:{port}") as client:
            page = await client.get("/plans/team/chat?x=1")
            assert page.status_code == 200
            assert html.policy() in page.headers["content-security-policy"]
            assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
            assert page.headers["x-content-type-options"] == "nosniff"
            assert page.headers["cache-control"] == "no-store"
            head = await client.head("/")
            assert (head.status_code, head.text) == (200, "")
            assert (await client.post("/", content=b"x")).status_code == 405
            assert (await client.get("/", headers={"Host": "evil.example"})).status_code == 421
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get("/", headers={"X-Long": "x" * 100_000})
        await server.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("head", "host"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost:8081\r\n\r\n", "localhost"),
        (b"GET / HTTP/1.1\r\nhost:127.0.0.1\r\n\r\n", "127.0.0.1"),
        (b"GET / HTTP/1.1\r\nHost: [::1]:8081\r\n\r\n", "::1"),
        (b"GET / HTTP/1.1\r\n\r\n", ""),
    ],
)
def test_the_host_is_read_without_its_port(head: bytes, host: str) -> None:
    assert parse(head) == Request("GET", "/", host)


def test_page_settings() -> None:
    assert settings.from_environment({}).page_port is None, "off unless asked for"
    assert settings.from_environment({"INFERASIM_PAGE_PORT": "8081"}).page_port == 8081
    for wrong in ("8080", "70000", "x"):
        with pytest.raises(InputError):
            settings.from_environment({"INFERASIM_PAGE_PORT": wrong})
