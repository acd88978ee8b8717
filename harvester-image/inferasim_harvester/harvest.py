"""One harvest from start to end: start or find the engine, warm it, measure what is missing, check, write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from inferasim_harvester import (
    assemble,
    checkpoint,
    collectives,
    device,
    engine_process,
    launch,
    live_checks,
    plan,
    routing,
)
from inferasim_harvester.effective import Effective, parse_report, read_effective
from inferasim_harvester.engine_process import EngineProcess
from inferasim_harvester.errors import (
    EngineDiedError,
    EngineNotReadyError,
    EngineStartError,
    HarvestError,
    MeasurementFailedError,
    RequestFailedError,
)
from inferasim_harvester.measure import measure_decode, measure_packed, measure_prefill
from inferasim_harvester.metrics_page import (
    Counters,
    Sample,
    counters,
    difference,
    fallen,
    parse_page,
    requests_by_rank,
)
from inferasim_harvester.options import Options
from inferasim_harvester.output import recall_frac
from inferasim_harvester.overhead import client_s_per_event
from inferasim_harvester.plan import CLOCKS, DRIFT, Point
from inferasim_harvester.progress import ANCHOR_FILE, Progress
from inferasim_harvester.prompts import Prompts
from inferasim_harvester.session import Session
from inferasim_harvester.spec import HarvestSpec
from inferasim_harvester.store import Points
from inferasim_harvester.streams import dialect_of
from inferasim_harvester.verdict import Seen, all_checks
from inferasim_harvester.wire import Address, Client
from simcore.anchors.checks import CheckResult, worst
from simcore.anchors.schema import Anchor
from simcore.cards.accelerator import is_cpu
from simcore.cards.layout import Engine
from simcore.errors import InputError

READY_POLL_S: Final = 1.0
READY_TOKENS: Final = 16
INFO_STALL_S: Final = 20.0
SETTLE_TRIES, SETTLE_POLL_S = 50, 0.2
"""How long an engine may take to book a request after its last byte: a busy front end took more than a second."""
_REPORT_PATHS: Final = {
    Engine.VLLM: ("/server_info?config_format=json",),
    Engine.SGLANG: ("/server_info", "/get_server_info"),
    Engine.ATOM: ("/server_info",),
}
_MARKERS: Final = {Engine.VLLM: "vllm", Engine.SGLANG: "sglang", Engine.ATOM: "atom.entrypoints"}


@dataclass
class Harvest:
    """The state of one harvest."""

    spec: HarvestSpec
    points: Points
    progress: Progress
    options: Options
    now: Callable[[], str]
    process: EngineProcess | None = None
    last: Counters | None = None
    """The engine's counters when it was last looked at."""

    async def run(self) -> tuple[Anchor, tuple[CheckResult, ...]]:
        """Measures and writes the anchor. Raises HarvestError or InputError; always ends an engine that it started."""
        self.weights_dtype = self._weights_dtype()
        if self.spec.sweeps.expert_routing is not None:  # refused now, not after the sweeps
            routing.read_prompts(self.spec.sweeps.expert_routing.prompts_path)
        todo = plan.points_of(self.spec)
        self.progress.total = len(todo)
        self._count(todo)
        before = device.devices(self.options.sysfs)
        extra: list[CheckResult] = []
        try:
            extra += await collectives.phase(self.spec, self.points, self.progress, self.options)
            await self._start()
            session = await self._ready()
            effective = await self._effective()
            throttled = await self._violations()
            client_s = await client_s_per_event()
            recall = await recall_frac(session)
            started = await self._clocks()
            await self._warm_up(session)
            await self._sweep(session, [point for point in todo if not point.is_filled], effective)
            effective.pools = effective.pools or (await self._effective()).pools
            await self.progress.say("checking what was measured", "Checking")
            ran = assemble.Ran(
                effective,
                self.weights_dtype,
                device.architecture(self.options.sysfs) if self.is_gpu else None,
                None,
                self.now(),
                self.options.node,
                self.options.client_command,
            )
            self._keep_clocks(started, await self._clocks())
            violations = (throttled, await self._violations())
            await self._decode_only([point for point in todo if point.is_filled], effective)
            extra += await routing.phase(self.spec, self.progress, self.options, self._again, self._post)
            anchor, checks = all_checks(
                self.spec,
                self.points.records,
                ran,
                is_gpu=self.is_gpu,
                own_engine=self.process is not None,
                devices=before,
                seen=Seen(
                    violations=violations,
                    client_s_per_event=client_s,
                    model=session.model,
                    extra=tuple(extra),
                    expert_load=routing.kept(self.progress.folder),
                    output=live_checks.output(
                        recall,
                        str(effective.settings.get("kvDtype", self.spec.signature.kv_dtype)),
                        real_weights=self.spec.model.weights == "Real",
                        is_forced=self._is_acceptance_forced(),
                    ),
                ),
            )
        except HarvestError as error:
            raise await self._explained(error) from error
        finally:
            if self.process is not None:
                await self.process.stop()
        await self.progress.keep(ANCHOR_FILE, anchor.to_json())
        await self.progress.say(f"{len(todo)} points, verdict {worst(checks)}", "Done")
        return anchor, checks

    @property
    def is_gpu(self) -> bool:
        """Whether a GPU is measured."""
        return not is_cpu(self.spec.accelerator.product)

    @property
    def _speculates(self) -> bool:
        return self.spec.signature.speculation is not None

    def _is_acceptance_forced(self) -> bool:
        speculation = self.spec.signature.speculation
        return speculation is not None and speculation.forced_acceptance_length is not None

    def _weights_dtype(self) -> str:
        found = self.spec.signature.weight_dtype or checkpoint.weights_dtype(
            checkpoint.read_config(self.spec.model.path)
        )
        if found is None:
            raise InputError(
                "signature.weightDtype", None, "be given when the checkpoint's config.json does not say it"
            )
        return found

    def _count(self, todo: Sequence[Point]) -> None:
        self.progress.done = sum(point.name in self.points for point in todo)
        self.progress.remaining_weight = sum(point.weight for point in todo if point.name not in self.points)

    def _look(self, page: Sequence[Sample]) -> Counters:
        """The counters of a page. Raises EngineDiedError when they began anew: behind the port is another process."""
        found = counters(self.spec.engine.name, page)
        fell = fallen(self.last, found) if self.last is not None else ""
        if fell:
            raise EngineDiedError(f"a restart in mid-sweep, or several engines behind one address: the counter {fell}")
        self.last = found
        return found

    async def _start(self, more: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        if self.options.engine_url is not None:
            self.client = Client(Address.parse(self.options.engine_url), self.options.stall_s)
            return
        argv = [*launch.command(self.spec, port=self.options.port), *more]
        self.client = Client(Address("127.0.0.1", self.options.port), self.options.stall_s)
        if await self.client.is_reachable():
            raise EngineStartError(
                f"something listens on port {self.options.port} already; it would be measured instead"
            )
        log = self.progress.folder / ("engine.log" if not more else "engine-again.log")
        self.process = EngineProcess(argv, {**launch.environment(self.spec), **(variables or {})}, log)
        await self.progress.say("starting " + " ".join(argv[:4]) + " …", "Starting")
        await self.process.start()

    async def _ready(self) -> Session:
        """Waits for a token, not for /health: the HTTP server is up long before, and stays up after (case A20)."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self.options.start_timeout_s
        last = "nothing answered"
        while True:
            if self.process is not None and self.process.exit_code is not None:
                raise EngineStartError(f"the engine ended with code {self.process.exit_code} before its first token")
            try:
                session = await open_session(self.spec, self.client)
                await session.wave(f"ready/{loop.time():.3f}", 1, READY_TOKENS, 2)
                session.take_tally()
                return session
            except HarvestError as error:
                last = str(error)
            if loop.time() >= deadline_s:
                raise EngineNotReadyError(f"no token within {self.options.start_timeout_s:g} s: {last}")
            await asyncio.sleep(READY_POLL_S)

    async def _again(self, more: Sequence[str], variables: Mapping[str, str] | None = None) -> Session:
        """The engine once more, with more arguments."""
        if self.process is not None:
            await self.process.stop()
        self.last = None
        await self._start(more, variables)
        return await self._ready()

    async def _decode_only(self, todo: Sequence[Point], effective: Effective) -> None:
        """The second prompt length, on an engine that fills its KV cache instead of computing the prompts."""
        if not any(point.name not in self.points for point in todo):
            return
        if self.options.engine_url is not None:
            for point in todo:
                self.points.add(point.name, {"unmeasured": "an engine that runs already cannot be started again"})
            return
        await self.progress.say("starting the engine without prefill", "Starting")
        try:
            session = await self._again(launch.decode_only_arguments(self.spec))
            await session.wave("warm/filled", todo[-1].count, todo[-1].length, 4)
            session.take_tally()
            await self._sweep(session, todo, effective)
        except HarvestError as error:  # what the first engine gave stays an anchor
            for point in todo:
                if point.name not in self.points:
                    self.points.add(point.name, {"unmeasured": str(error)[:500]})

    async def _post(self, path: str) -> None:
        (answer,) = await self.client.post(path, [b""])
        if answer.status != 200:
            raise MeasurementFailedError(f"{path} answered {answer.status}")

    async def _clocks(self) -> tuple[float, float | None]:
        """(our clock, the engine's), seconds."""
        answer = await self.client.get("/v1/models", INFO_STALL_S)
        return answer.sent_s, answer.date_s

    def _keep_clocks(self, before: tuple[float, float | None], after: tuple[float, float | None]) -> None:
        """The longest stretch that both clocks were seen over stays, whichever pod saw it."""
        client_s = after[0] - before[0]
        server_s = after[1] - before[1] if after[1] is not None and before[1] is not None else None
        if client_s > self.points.records.get(CLOCKS, {}).get("clientS", 0.0):
            self.points.add(CLOCKS, {"clientS": client_s, "serverS": server_s})

    async def _page(self) -> list[Sample]:
        try:
            answer = await self.client.get("/metrics", INFO_STALL_S)
        except EngineDiedError:
            return []
        return parse_page(answer.body.decode("utf-8", "replace")) if answer.status == 200 else []

    async def _effective(self) -> Effective:
        engine = self.spec.engine.name
        report = version = None
        for path in _REPORT_PATHS[engine]:
            answer = await self.client.get(path, INFO_STALL_S)
            if answer.status == 200 and (report := parse_report(answer.body)) is not None:
                break
        if engine is Engine.VLLM:
            answer = await self.client.get("/version", INFO_STALL_S)
            version = str(answer.json().get("version")) if answer.status == 200 else None
        if self.process is not None:
            argv, log = self.process.command_line(), self.process.log_text()
        else:
            argv, log = engine_process.beside(_MARKERS[engine]), ""
        return read_effective(
            engine,
            self.spec.engine.version,
            argv=argv,
            report=report,
            samples=await self._page(),
            log=log,
            reported_version=version,
        )

    async def _violations(self) -> dict[str, float] | None:
        if self.options.gpu_metrics_url is None or not self.is_gpu:
            return None
        url = self.options.gpu_metrics_url
        try:
            answer = await Client(Address.parse(url, "gpu-metrics-url")).get(
                urlsplit(url).path or "/metrics", INFO_STALL_S
            )
        except HarvestError:
            return None
        return device.violations(parse_page(answer.body.decode("utf-8", "replace"))) if answer.status == 200 else None

    async def _warm_up(self, session: Session) -> None:
        """At least as many requests as the largest batch, of every length; none of them is counted (case E08)."""
        await self.progress.say("warming the engine up", "WarmingUp")
        sweeps = self.spec.sweeps
        for length in (*sweeps.prefill_lengths_tokens, *sweeps.decode_prompt_lengths_tokens):
            await session.wave(f"warm/{length}", 1, length, 2)
        length, batch = sweeps.decode_prompt_lengths_tokens[0], sweeps.decode_batches[-1]
        await session.wave("warm/batch", batch, length, 4)
        session.take_tally()

    async def _sweep(self, session: Session, todo: Sequence[Point], effective: Effective) -> None:
        loop = asyncio.get_running_loop()
        for point in todo:
            if point.name in self.points:
                continue
            await self.progress.say(f"measuring {point.name}", point.phase)
            started_s = loop.time()
            try:
                record = await self._counted(session, point, effective)
            except MeasurementFailedError as error:
                session.take_tally()
                record = {"unmeasured": str(error)}
            self.points.add(point.name, record)
            self.progress.measured.append((point.weight, loop.time() - started_s))
            self._count(plan.points_of(self.spec))
            await self.progress.say(f"measured {point.name}", points=self.points)

    async def _counted(self, session: Session, point: Point, effective: Effective) -> dict[str, Any]:
        """One point's record, with its tally and the engine's counters over it."""
        engine = self.spec.engine.name
        page = await self._page()
        before, ranks = self._look(page), requests_by_rank(engine, page)
        record = await self._measure(session, point, effective)
        page = await self._settled(engine, before, session.tally.requests)
        after, ranks_after = self._look(page), requests_by_rank(engine, page)
        tally = session.take_tally()
        grown = {name: difference(value, getattr(before, name)) for name, value in asdict(after).items()}
        served = round(tally.served_prompt_tokens / tally.requests) if tally.requests else point.length
        if point.phase != "Prefill":
            record["servedTokens"] = served
        if point.is_filled:
            record["isFilled"] = True
        else:
            record["smallestStepS"] = await self._smallest_step(session, point, effective)
        by_rank = {rank: count - ranks.get(rank, 0.0) for rank, count in ranks_after.items()}
        return {**record, "tally": asdict(tally), "counters": grown, "requestsByRank": by_rank}

    async def _smallest_step(self, session: Session, point: Point, effective: Effective) -> float | None:
        """One wave of the smallest batch, after each point: what slows the machine for a while shows between points."""
        sweeps, once = self.spec.sweeps, replace(self.options.decode, minimum=1, maximum=1)
        batch, length = sweeps.decode_batches[0], sweeps.decode_prompt_lengths_tokens[0]
        label = f"{point.name}/after"
        try:
            found = await measure_decode(
                session, batch, length, once, effective.token_budget, label, speculates=self._speculates
            )
            step_s = found.steps_s[0]
        except MeasurementFailedError:
            step_s = None  # what is wrong with such a wave, its own point says
        # Its requests are no point's.
        await self._settled(self.spec.engine.name, self.last, session.take_tally().requests)
        return step_s

    async def _settled(self, engine: Engine, before: Counters | None, requests: int) -> list[Sample]:
        """The metrics page once the engine has booked our last requests; engines book a moment after the last byte."""
        for _ in range(SETTLE_TRIES):
            page = await self._page()
            booked = difference(counters(engine, page).requests, before.requests if before is not None else None)
            if booked is None or booked >= requests:
                break
            await asyncio.sleep(SETTLE_POLL_S)
        return page

    async def _measure(self, session: Session, point: Point, effective: Effective) -> dict[str, Any]:
        budget, longest = effective.token_budget, effective.step_tokens
        if point.phase == "Prefill" and longest is not None and point.length > longest:
            raise MeasurementFailedError(f"{point.length} tokens take several steps of at most {longest}")
        if point.phase == "Prefill":
            prefill = await measure_prefill(
                session, point.length, self._blocker(budget), self.options.prefill, point.name
            )
            served = session.tally.worst_length_deviation
            tokens = point.length if served == 0 else await self._served_length(session, point)
            return {"ttftS": prefill.ttft_s, "stepS": prefill.step_s, "servedTokens": tokens}
        if point.phase == "Packed":
            if budget is not None and point.count * point.length > budget:
                raise MeasurementFailedError(
                    f"{point.count} x {point.length} tokens exceed the token budget of {budget}"
                )
            blocker = self._blocker(budget)
            if blocker is None:
                raise MeasurementFailedError("no prefill point to put in front")
            values = await measure_packed(session, point.count, point.length, blocker, self.options.decode, point.name)
            return {"stepS": values}
        pool = effective.kv_pool_tokens
        if (
            pool is not None
            and point.count * (point.length + self.options.decode.steps) > pool * self.spec.attention_ranks
        ):
            raise MeasurementFailedError(
                f"{point.count} requests of {point.length} tokens exceed the KV pool of {pool}"
            )
        decode = await measure_decode(
            session,
            point.count,
            point.length,
            self.options.decode,
            budget,
            point.name,
            speculates=self._speculates,
        )
        return {
            "stepsS": decode.steps_s,
            "contextTokens": sum(decode.context_tokens) / len(decode.context_tokens),
            "tokensPerChunk": sum(decode.tokens_per_chunk) / len(decode.tokens_per_chunk),
            "draftedFrac": sum(decode.drafted) / len(decode.drafted),
            "stalledFrac": max(decode.stalled_frac),
            "coalescedFrac": max(decode.coalesced_frac),
            "ttftS": decode.ttft_s if point.name != DRIFT else [],
        }

    async def _served_length(self, session: Session, point: Point) -> int:
        """What the engine says it serves when asked for `point.length` tokens."""
        (stream,) = await session.wave(f"{point.name}/served", 1, point.length, 1)
        return stream.prompt_tokens

    def _blocker(self, budget: int | None) -> tuple[int, float] | None:
        """(tokens, seconds alone) of the longest measured prompt that fits one step."""
        known = {
            int(name.split("/")[1]): record["ttftS"]
            for name, record in assemble.measured(self.points.records, "prefill").items()
        }
        if not known:
            return None
        length = plan.longest_inside(list(known), budget)
        values = sorted(known[length])
        return length, values[len(values) // 2]

    async def _explained(self, error: HarvestError) -> HarvestError:
        """A broken connection of an engine that has ended is its death, with its exit code."""
        if self.process is None or self.process.exit_code is None or isinstance(error, EngineStartError):
            return error
        return EngineDiedError(f"the engine ended with code {self.process.exit_code}: {error}")


async def open_session(spec: HarvestSpec, client: Client) -> Session:
    """A session with the model that the engine serves. Raises HarvestError."""
    answer = await client.get("/v1/models", INFO_STALL_S)
    if answer.status != 200:
        raise RequestFailedError(f"/v1/models answered {answer.status}")
    found = answer.json()
    listed = found.get("data") if isinstance(found, dict) else None
    first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
    return Session(
        client,
        dialect_of(spec.engine.name),
        Prompts(spec.digest, checkpoint.vocabulary(checkpoint.read_config(spec.model.path))),
        str(first.get("id") or spec.model.name),
        # Without a tokenizer the engine can only answer in token ids.
        not any("--skip-tokenizer-init" in argument for argument in spec.engine.extra_args),
    )
