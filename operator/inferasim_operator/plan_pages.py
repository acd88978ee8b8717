"""The operator's read-only page: `/` lists the objects, `/plans/NAMESPACE/NAME` is the page of a plan's answer.

It has no users and no secrets of its own: it listens on the loopback of its pod, so that whoever may forward a port to
the pod may read it, and answers for no other host name than loopback's.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from inferasim_operator import views
from inferasim_operator.api.v1alpha1.common import API_VERSION, DNS_SUBDOMAIN
from inferasim_operator.engine.client import Client
from inferasim_operator.engine.web import NOT_FOUND, Reply, Request, WebServer
from inferasim_operator.errors import NotFoundError, OperatorError
from inferasim_operator.report import html, index, plan
from simcore.errors import InferasimError

HOST = "127.0.0.1"
OWN_NAMES = {"localhost", "127.0.0.1", "::1"}
"""A page of another site that points its own name at loopback (DNS rebinding) asks for that name, and gets nothing."""
SHOWN_LIMIT = 500
FRESH_S = 5.0
"""The list is read from the API server once in so long, whoever asks how often."""
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": f"{html.policy()}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class PlanPages:
    """Renders the pages from live objects; blocking reads happen in threads, one at a time."""

    def __init__(
        self, client: Client, namespaces: tuple[str, ...], *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._namespaces, self._clock_s = client, namespaces or ("",), clock_s
        self._turn = asyncio.Lock()
        self._listed: tuple[float, str] | None = None

    def server(self, port: int) -> WebServer:
        """The server of the pages, not yet listening."""
        return WebServer(HOST, port, self.reply)

    async def reply(self, request: Request) -> Reply:
        """The page that was asked for."""
        if request.host not in OWN_NAMES:
            return _plain("421 Misdirected Request", "this page answers on loopback only")
        path = [unquote(part) for part in request.path.split("/")[1:]]
        try:
            if path == [""]:
                return _page("200 OK", await self._list())
            if len(path) == 3 and path[0] == "plans" and all(re.fullmatch(DNS_SUBDOMAIN, part) for part in path[1:]):
                async with self._turn:
                    return _page("200 OK", await asyncio.to_thread(self._plan, path[1], path[2]))
        except NotFoundError as error:
            return _plain("404 Not Found", str(error))
        except views.NoAnswerError as error:
            return _plain("404 Not Found", str(error))
        except InferasimError as error:
            unavailable = isinstance(error, OperatorError)
            return _plain("503 Service Unavailable" if unavailable else "500 Internal Server Error", str(error))
        return NOT_FOUND

    async def _list(self) -> str:
        async with self._turn:
            now_s = self._clock_s()
            if self._listed is None or now_s - self._listed[0] > FRESH_S:
                self._listed = (now_s, await asyncio.to_thread(self._read))
            return self._listed[1]

    def _read(self) -> str:
        states = [
            views.state(live)
            for kind in index.PLURALS
            for namespace in self._namespaces
            for live in self._client.list(API_VERSION, kind, namespace)
        ]
        shown = states[:SHOWN_LIMIT]
        answers = {(item["kind"], item["namespace"], item["name"]): views.answer_text(item) for item in shown}
        return index.render(shown, answers, left_out=len(states) - len(shown))

    def _plan(self, namespace: str, name: str) -> str:
        if self._namespaces != ("",) and namespace not in self._namespaces:
            raise NotFoundError(f"namespace {namespace} is not served", status=404)
        live = self._client.get(API_VERSION, index.PLAN_KIND, namespace, name)
        config_map = self._client.get("v1", "ConfigMap", namespace, views.result_name(live))
        try:
            return plan.render(views.result_of(live, config_map), name=name)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # An answer of another version of the operator; its own words are in the status.
            raise views.NoAnswerError(f"the answer of plan `{name}` has another form ({error!r})") from error


def _page(status: str, text: str) -> Reply:
    return Reply(status, "text/html; charset=utf-8", text.encode(), HEADERS)


def _plain(status: str, text: str) -> Reply:
    return Reply(status, "text/plain; charset=utf-8", f"{text}\n".encode(), HEADERS)
