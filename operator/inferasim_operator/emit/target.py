"""Where and how configurations are emitted: what the planner does not choose and only the user can know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from inferasim_operator.api.v1alpha1.common import PodOptions
from inferasim_operator.emit.configuration import Configuration
from simcore.errors import InputError

RESERVED_LABELS: Final = (
    "inferasim.dev/",
    "llm-d.ai/",
    "leaderworkerset.sigs.k8s.io/",
    "app.kubernetes.io/managed-by",
)
"""Beginnings of labels that selectors of emitted objects, or engines' routers, go by."""


class Format(StrEnum):
    """Which stack the manifests are for."""

    VLLM = "VLLM"
    SGLANG = "SGLang"
    ATOM = "ATOM"
    LLMD = "LLMD"


@dataclass(frozen=True)
class Images:
    """Images beside the engine's own, which the configuration pins."""

    router: str = ""
    """SGLang's router, or llm-d's endpoint picker."""
    sidecar: str = ""
    """llm-d's routing sidecar."""


@dataclass(frozen=True)
class Gateway:
    """The gateway that an HTTPRoute attaches to."""

    name: str
    namespace: str = ""


@dataclass(frozen=True)
class Deployment:
    """One named configuration of a mix, usually a tier's."""

    name: str
    configuration: Configuration
    peak_prefill_tokens_per_s: int | None = None
    """Measured prefill rate of one replica, from the anchor; None = not measured."""


@dataclass(frozen=True)
class Target:
    """Everything about the destination."""

    mix: str
    namespace: str
    format: Format
    pod: PodOptions = field(default_factory=PodOptions)
    labels: Mapping[str, str] = field(default_factory=dict)
    """Extra labels that the user asks for, on every object."""
    images: Images = Images()
    is_autoscaled: bool = False
    """Replicas belong to an autoscaler: no `replicas` field is emitted at all (D04)."""
    is_monitored: bool = False
    """Emit PodMonitors."""
    rdma_resources: Mapping[str, int] = field(default_factory=dict)
    """Extended resources of the network cards, per pod; names differ by cluster."""
    load_bytes_per_s: int | None = None
    """Measured rate of weight loading; None = the assumed one."""
    gateway: Gateway | None = None

    def __post_init__(self) -> None:
        for name in self.rdma_resources:
            if name.startswith("amd.com/gpu"):
                raise InputError("rdmaResources", name, "be network cards; GPUs follow from the layout")
            if name.startswith("nvidia.com/"):
                raise InputError(
                    "rdmaResources", name, "not be a resource of NVIDIA's GPUs: the manifests are for ROCm"
                )
        for name in (*self.labels, *(self.pod.labels or {})):
            # A router finds pods by such labels: one of the user's would send requests to a pod that serves none.
            if name.startswith(RESERVED_LABELS):
                raise InputError(
                    "labels", name, f"not begin with {' or '.join(RESERVED_LABELS)}", "they are ours to set"
                )
