"""`python -m inferasim_operator run`: the operator as a process.

This file and the kinds' `handlers.py` are the only ones that import kopf, which runs the watches and nothing else: no
finalizers, no annotations, no peering, no handler logic.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any

import aiohttp
import kopf

from inferasim_operator import process, settings
from inferasim_operator.engine.client import Client, Connection
from inferasim_operator.engine.wiring import Wiring
from inferasim_operator.errors import OperatorError
from inferasim_operator.kinds import registry as kinds
from simcore.errors import InputError

EMPTY_LIST = re.compile(rb'"items":\s*null\s*}\s*\Z')
"""How the API server ends a list of metadata that holds none; one of whole objects ends with `[]`."""


async def watch(options: settings.Settings, client: Client, wirings: Sequence[Wiring], stop: asyncio.Event) -> None:
    """Run kopf's watches until `stop` is set."""
    registry = kopf.OperatorRegistry()
    known: tuple[Connection, kopf.AiohttpSession] | None = None

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        # Asked again whenever the server says 401, so a rotated token is picked up; one reader of credentials.
        nonlocal known
        connection = client.connection()
        if known is None or known[0] != connection:
            known = connection, _session(connection)
        return known[1]  # the same as before is one that kopf knows to be refused, and does not try again

    for (_, register), wiring in zip(kinds.KINDS, wirings, strict=True):
        register(registry, wiring)
    before = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=_kopf_settings(options),
        clusterwide=not options.namespaces,
        namespaces=list(options.namespaces),
        stop_flag=stop,
    )
    _stop_on_signals(stop)  # again, in the place of kopf's: the workers are to end first
    await kopf.run_tasks(tasks, ignored=before)


async def names_only(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Have the server leave out all but the metadata of what is listed and watched.

    Handlers look at nothing else, and the ConfigMaps of a whole cluster, which are mostly strangers', would not fit
    into the operator's memory. A server that cannot do it sends everything.
    """
    is_watch = "watch" in request.url.query
    kind = "PartialObjectMetadata" if is_watch else "PartialObjectMetadataList"
    request.headers["Accept"] = f"application/json;as={kind};g=meta.k8s.io;v=v1,application/json"
    response = await handler(request)
    if not is_watch:
        # kopf would take the null for a list of objects, and its watch would end.
        response._body = EMPTY_LIST.sub(b'"items":[]}', await response.read())
    return response


def _session(connection: Connection) -> kopf.AiohttpSession:
    """As kopf makes its own, but for `names_only`."""
    info = kopf.ConnectionInfo(**dataclasses.asdict(connection))
    connector = aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context())
    session = aiohttp.ClientSession(connector=connector, headers=info.as_http_headers(), middlewares=(names_only,))
    return kopf.AiohttpSession(server=info.server, aiohttp_session=session)


def _kopf_settings(options: settings.Settings) -> kopf.OperatorSettings:
    configured = kopf.OperatorSettings()
    configured.peering.standalone = True  # C02: a stranger's peering object must not pause us; we hold a Lease
    configured.posting.enabled = False  # events are our own, and few
    configured.scanning.disabled = True  # C08: no right to watch CRDs and namespaces is needed
    configured.networking.request_timeout = 60.0
    configured.queueing.idle_timeout = 0.1  # handlers are done at once; thousands of tasks that wait are memory
    configured.watching.inactivity_timeout = options.watch_inactivity_s
    configured.process.ultimate_exiting_timeout = 30.0
    return configured


def _stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)


async def _run(options: settings.Settings) -> None:
    stop = asyncio.Event()
    _stop_on_signals(stop)
    await process.Process(options, watch).run(stop)


def _options(arguments: list[str] | None) -> settings.Settings:
    parser = argparse.ArgumentParser(prog="python -m inferasim_operator", description="The inferasim operator.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run until told to stop")
    scope = run.add_mutually_exclusive_group()
    scope.add_argument("--namespace", action="append", help="serve this namespace (may be repeated)")
    scope.add_argument("--all-namespaces", action="store_true", help="serve all namespaces (needs a ClusterRole)")
    run.add_argument("--kubeconfig", help="kubeconfig file; the pod's service account is used without")
    run.add_argument("--context", help="context of the kubeconfig")
    run.add_argument("--lease-namespace", help="namespace of the leader lease")
    run.add_argument("--lease-seconds", type=int, help="how long a dead leader keeps the lead")
    run.add_argument("--health-port", type=int, help="port of /healthz and /metrics, 0 = any")
    run.add_argument("--page-port", type=int, help="port of the read-only page on loopback; none without")
    run.add_argument("--compute-workers", type=int, help="processes for searches")
    run.add_argument("--log-level", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    given = parser.parse_args(arguments)
    options = settings.from_environment()
    changes: dict[str, Any] = {
        "kubeconfig": given.kubeconfig,
        "context": given.context,
        "lease_duration_s": given.lease_seconds,
        "health_port": given.health_port,
        "page_port": given.page_port,
        "compute_workers_count": given.compute_workers,
        "log_level": given.log_level,
    }
    if given.namespace:
        changes["namespaces"] = tuple(dict.fromkeys(given.namespace))
        changes["lease_namespace"] = given.namespace[0]
    if given.all_namespaces:
        changes["namespaces"] = ()
    if given.lease_namespace:
        changes["lease_namespace"] = given.lease_namespace
    return dataclasses.replace(options, **{key: value for key, value in changes.items() if value is not None})


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code: 0 stopped, 2 bad settings, 1 anything else (restart me)."""
    try:
        options = _options(arguments)
    except InputError as error:
        print(f"inferasim-operator: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=options.log_level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLogger().level))
    try:
        asyncio.run(_run(options))
    except InputError as error:
        print(f"inferasim-operator: {error}", file=sys.stderr)
        return 2
    except OperatorError as error:
        logging.getLogger("inferasim_operator").error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
