"""The operator process: lease, workers, computations, watches and the health server, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferasim_operator.api.v1alpha1.common import API_VERSION
from inferasim_operator.engine import client as clients
from inferasim_operator.engine import compute, health, labels, lease
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.clock import Clock
from inferasim_operator.engine.kind import Context, Kind
from inferasim_operator.engine.loop import Workers
from inferasim_operator.engine.reconcile import Reconciler
from inferasim_operator.engine.web import WebServer
from inferasim_operator.engine.wiring import Wiring
from inferasim_operator.errors import CRDS_COMMAND, LeaseLostError, OperatorError, UnavailableError
from inferasim_operator.kinds import registry as kinds
from inferasim_operator.settings import Settings

logger = logging.getLogger(__name__)
RETRY_S = 5.0

Watch = Callable[[Settings, clients.Client, Sequence[Wiring], asyncio.Event], Awaitable[None]]
"""Runs the watches until the event is set; raises or returns early when they end."""


class CrdError(OperatorError):
    """The cluster does not serve our kinds, so nothing could be watched."""


@dataclass
class Process:
    """One operator process."""

    settings: Settings
    watch: Watch
    clock: Clock = field(default_factory=Clock)
    leads: bool = False
    is_met: bool = False
    """Whether the API server has answered, and serves our kinds."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raises CrdError, LeaseLostError, ClusterError."""
        settings = self.settings
        client = clients.Client.connect(
            manager=labels.MANAGER, kubeconfig=settings.kubeconfig, context=settings.context
        )
        server = health.HealthServer(settings.health_host, settings.health_port, self.problems, self.obstacles)
        logger.info("health and metrics on port %d", await server.start())
        page = await self._page(client)
        leash = lease.Lease(
            client.impatient(max(1.0, settings.lease_duration_s / 3)),
            self.clock,
            settings.lease_namespace,
            settings.lease_name,
            settings.identity,
            settings.lease_duration_s,
        )
        waiting, holding = threading.Event(), threading.Event()
        forwarding = asyncio.create_task(_forward(stop, waiting))
        try:
            self.is_met = await asyncio.to_thread(await_crds, client, waiting)
            if self.is_met and await asyncio.to_thread(leash.acquire, waiting):
                await self._lead(client, leash, stop, holding)
        finally:
            self.leads = False
            waiting.set()
            forwarding.cancel()
            # Given back only now that nothing of ours runs any more.
            await asyncio.to_thread(leash.release)
            await server.stop()
            if page is not None:
                await page.stop()

    async def _page(self, client: clients.Client) -> WebServer | None:
        """The read-only page, listening; None where none is wanted. Every process has it: it only reads."""
        settings = self.settings
        if settings.page_port is None:
            return None
        from inferasim_operator import plan_pages  # an operator without the page does without its code

        page = plan_pages.PlanPages(client, settings.namespaces).server(settings.page_port)
        logger.info("page on http://%s:%d/", plan_pages.HOST, await page.start())
        return page

    def problems(self) -> list[str]:
        """Why this process should be restarted; a process that waits for the lease has no watches, and is healthy."""
        if not self.leads:
            return []
        expected = [kind.resource.plural for kind, _ in kinds.KINDS] + list(kinds.WATCHED)
        return [f"no live watch of {plural}" for plural in health.dead_watches(expected)]

    def obstacles(self) -> list[str]:
        """Why this process is not ready; one that waits for the lease is."""
        return self.problems() if self.is_met else ["the API server has not answered yet"]

    async def _lead(
        self, client: clients.Client, leash: lease.Lease, stop: asyncio.Event, halt: threading.Event
    ) -> None:
        settings = self.settings
        # A process that was stopped or starved may go on in the middle of a pass, while another leads.
        client.may_write = lambda: leash.left_s() > 0
        computations = compute.Computations(
            settings.compute_function, workers=settings.compute_workers_count, timeout_s=settings.compute_timeout_s
        )
        context = Context(
            client,
            computations,
            worker_image=settings.worker_image,
            serves_all_namespaces=not settings.namespaces,
        )
        wirings = [self._wire(kind, context) for kind, _ in kinds.KINDS]
        workers = {wiring.kind: wiring.workers for wiring in wirings}

        def wake_owner(owner: Any) -> None:
            kind, key = owner
            assert isinstance(key, ObjectKey)  # noqa: S101 - the engine's own owners are (kind, key)
            workers[kind].wake_from_thread(key)

        computations.on_change = wake_owner
        holding = asyncio.create_task(asyncio.to_thread(leash.hold, halt), name="lease")
        expiring = asyncio.create_task(_until_expired(leash), name="lease-expiry")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        watching = asyncio.create_task(self._watched(client, wirings, stop), name="watches")
        try:
            await asyncio.wait({holding, expiring, stopping, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            elif not stop.is_set():
                raise LeaseLostError("the lease is lost; another instance may lead")
        finally:
            # The workers end before the watches do: kopf waits 5 s for tasks it does not know, then cancels them.
            stop.set()
            await asyncio.gather(*(worker.close() for worker in workers.values()))
            await asyncio.to_thread(computations.close)
            expiring.cancel()
            await asyncio.gather(watching, stopping, expiring, return_exceptions=True)
            halt.set()
            await asyncio.gather(holding, return_exceptions=True)

    async def _watched(self, client: clients.Client, wirings: Sequence[Wiring], stop: asyncio.Event) -> None:
        self.leads = True
        await self.watch(self.settings, client, wirings, stop)

    def _wire(self, kind: Kind[Any], context: Context) -> Wiring:
        reconciler = Reconciler(kind, context, self.clock)
        workers = Workers(kind.resource.kind, reconciler.run, threads=kind.threads, resync_s=kind.resync_s)
        return Wiring(workers, context.references, kind.resource.kind)


def await_crds(client: clients.Client, stop: threading.Event) -> bool:
    """Wait for an API server that answers; False when told to stop before. Raises CrdError where it lacks our kinds.

    A process that ended for an outage begins anew while it lasts: ending again and again would make the kubelet wait
    minutes before the last start, long after the server is back.
    """
    while not stop.is_set():
        try:
            served = client.served_kinds(API_VERSION)
        except UnavailableError as error:
            logger.warning("the API server does not answer, trying again: %s", error)
            stop.wait(RETRY_S)
            continue
        missing = sorted({kind.resource.kind for kind, _ in kinds.KINDS} - served)
        if missing:
            raise CrdError(
                f"the cluster does not serve {', '.join(missing)} of {API_VERSION}; install the CRDs: {CRDS_COMMAND}"
            )
        return True
    return False


async def _until_expired(leash: lease.Lease) -> None:
    """Until the lease should have been renewed; told by this loop, since the thread that renews it may hang."""
    while (left_s := leash.left_s()) > 0:
        await asyncio.sleep(left_s)
    logger.error("lease not renewed in time")


async def _forward(stop: asyncio.Event, waiting: threading.Event) -> None:
    await stop.wait()
    waiting.set()
