"""What is to be observed for one mix, as plain data: pools of pods, promises, where the figures come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inferasim_operator.live.compare import Comparison, Promise
from inferasim_operator.live.export import Key
from inferasim_operator.live.window import Window


@dataclass(frozen=True)
class Pool:
    """Pods that serve requests side by side: every pod, or the leader of each group (case B13)."""

    source: str
    """Whose metric names: VLLM, SGLang, ATOM or EPP."""
    namespace: str
    labels: tuple[tuple[str, str], ...]
    """Of the pods, sorted."""
    series_labels: tuple[tuple[str, str], ...]
    """Of their series in Prometheus, sorted: those that the PodMonitor carries over."""
    port_name: str
    path: str
    gpus_per_replica_count: int = 0
    model: str = ""
    """Only series of this model count, where they say one; empty = all."""
    container: str = ""
    """The container whose image and arguments must be these; empty = any."""
    image: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def selector(self) -> str:
        """The Kubernetes label selector."""
        return ",".join(f"{name}={value}" for name, value in self.labels)


@dataclass(frozen=True)
class Subject:
    """One live configuration."""

    key: Key
    promise: Promise | None
    problem: str
    """Why there is nothing to compare with; empty when there is a promise."""
    engines: Pool
    """The pool that makes output tokens."""
    prefill: Pool | None = None
    """The pool that reads prompts, where it is another one."""
    router: Pool | None = None
    """The endpoint picker that measures latency, where the engines do not see a whole request."""

    @property
    def pools(self) -> tuple[Pool, ...]:
        return tuple(pool for pool in (self.engines, self.prefill, self.router) if pool is not None)


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus API, and how to prove oneself to it; secrets are kept out of every text."""

    url: str
    token: str = field(default="", repr=False)
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    authority: str = field(default="", repr=False)
    """PEM certificates to trust instead of the system's; empty = the system's."""


@dataclass(frozen=True)
class Request:
    """All that is wanted for one mix."""

    namespace: str
    mix: str
    subjects: tuple[Subject, ...]
    window_s: float
    tolerance_frac: tuple[tuple[str, float], ...] = ()
    """By figure, sorted."""
    prometheus: Prometheus | None = None
    """None = the pods are scraped."""


@dataclass(frozen=True)
class Reading:
    """What a source says of one pool now."""

    window: Window | None
    problem: str = ""
    """Why there is no window; a window never comes with a problem."""


@dataclass(frozen=True)
class Report:
    """What is known of one mix now."""

    comparisons: Mapping[Key, Comparison]
