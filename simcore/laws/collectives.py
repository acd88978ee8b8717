"""Collectives: alpha + m/B on two tiers, and which kernel serves a message (Tables 5 and 19)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from simcore.data.constants import Constant, constant
from simcore.errors import DomainError
from simcore.laws.domain import require_at_least, require_frac, require_not_negative, require_positive
from simcore.laws.registry import PAPER, Quantity, law


class Collective(StrEnum):
    """Communication a serving step issues."""

    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"


class Tier(StrEnum):
    """Links a message crosses."""

    NODE = "node"
    NETWORK = "network"


@dataclass(frozen=True)
class Link:
    """The constants that price one message: time = alpha_s + message_bytes / bytes_per_s."""

    alpha_s: float
    bytes_per_s: float
    kernel: str
    """Constant family, e.g. `custom_all_reduce.8.two_shot`."""
    assumed: tuple[str, ...]
    """What is not covered by a measurement, empty when nothing."""


@law(paper=PAPER, equation="App. B.2, message time")
def message_time(*, message_bytes: Quantity, alpha_s: Quantity, bytes_per_s: Quantity) -> Quantity:
    """Time of a collective that stands alone.

    Equation: t = alpha + m / B
    Args:
        message_bytes: m [bytes].
        alpha_s: alpha [s], latency; 0 inside a step, where every kernel's launch is already charged.
        bytes_per_s: B [bytes/s].
    Returns: t [s].
    Domain: m and alpha not negative; B above 0.
    Not modelled: contention between collectives that run at once.
    Source: paper App. B.2, Table 19.

    >>> round(message_time(message_bytes=123e3, alpha_s=11e-6, bytes_per_s=123e9), 12)
    1.2e-05
    """
    require_not_negative(message_bytes=message_bytes, alpha_s=alpha_s)
    require_positive(bytes_per_s=bytes_per_s)
    return alpha_s + message_bytes / bytes_per_s


@law(paper=PAPER, equation="App. B.2, mesh bandwidth")
def mesh_bandwidth(
    *, node_bytes_per_s: Quantity, efficiency_frac: Quantity, group_gpus_count: Quantity, node_gpus_count: Quantity
) -> Quantity:
    """Bandwidth of one GPU towards its group in a fully connected node.

    Equation: B(g) = B_node eta (g - 1) / (N - 1)
    Args:
        node_bytes_per_s: B_node [bytes/s].
        efficiency_frac: eta [1].
        group_gpus_count: g [1].
        node_gpus_count: N [1].
    Returns: B(g) [bytes/s].
    Domain: 2 <= g <= N; eta in (0, 1].
    Not modelled: rings that leave links of the group idle.
    Source: paper App. B.2.

    >>> mesh_bandwidth(node_bytes_per_s=700e9, efficiency_frac=0.5, group_gpus_count=4, node_gpus_count=8)
    150000000000.0
    """
    require_positive(node_bytes_per_s=node_bytes_per_s, efficiency_frac=efficiency_frac)
    require_frac(efficiency_frac=efficiency_frac)
    require_at_least(2.0, group_gpus_count=group_gpus_count)
    require_at_least(group_gpus_count, node_gpus_count=node_gpus_count)
    return node_bytes_per_s * efficiency_frac * (group_gpus_count - 1) / (node_gpus_count - 1)


@law(paper=PAPER, equation="App. B.2, bytes on the mesh")
def mesh_bytes(*, message_bytes: Quantity, group_gpus_count: Quantity, passes_count: Quantity) -> Quantity:
    """Bytes one GPU sends for a collective on a message of m bytes over the mesh.

    Equation: m_wire = passes m (g - 1) / g
    Args:
        message_bytes: m [bytes], the whole tensor.
        group_gpus_count: g [1].
        passes_count: [1], 2 for all-reduce (reduce-scatter and all-gather), 1 for all-to-all.
    Returns: m_wire [bytes].
    Domain: g at least 2; passes at least 1.
    Not modelled: protocol overhead (inside the efficiency).
    Source: paper App. B.2 leaves the convention open; this is the one under which Table 19's two all-to-all fits agree
    where they overlap (8 to 32 MiB).

    >>> mesh_bytes(message_bytes=800.0, group_gpus_count=8, passes_count=2)
    1400.0
    """
    require_not_negative(message_bytes=message_bytes)
    require_at_least(2.0, group_gpus_count=group_gpus_count)
    require_at_least(1.0, passes_count=passes_count)
    return passes_count * message_bytes * (group_gpus_count - 1) / group_gpus_count


_PASSES = {Collective.ALL_REDUCE: 2, Collective.ALL_TO_ALL: 1}
_MEASURED_GROUPS = (2, 4, 8)
_NETWORK_GROUPS = {Collective.ALL_REDUCE: (2, 16), Collective.ALL_TO_ALL: (16,), Collective.SEND_RECV: (2,)}


def link(*, collective: Collective, message_bytes: float, gpus_count: int, tier: Tier) -> Link:
    """The kernel and constants that serve a message of `message_bytes` in a group of `gpus_count` GPUs.

    In a node: vLLM's custom all-reduce up to 8 MiB (one-shot up to the switch size, two-shot above), RCCL all-to-all up
    to 32 MiB, RCCL over the mesh above and for send/recv; across nodes one pair per collective. `bytes_per_s` is per
    byte of the message in every case. A group size nobody measured takes the next larger measured one and is listed in
    `assumed`. Raises DomainError for a group of one GPU or a node group above the node's size. Source: paper Table 19.
    """
    require_not_negative(message_bytes=message_bytes)
    if gpus_count < 2 or (tier is Tier.NODE and gpus_count > constant("collective.mesh.node_gpus_count").value):
        raise DomainError(f"`gpus_count` must be from 2 to the node's size inside a node, got {gpus_count}")
    if collective is Collective.SEND_RECV:
        gpus_count = 2
    if tier is Tier.NETWORK:
        group, assumed = _measured_group(gpus_count, _NETWORK_GROUPS[collective])
        return _link(f"network_{collective}.{group}", assumed)
    group, assumed = _measured_group(gpus_count, _MEASURED_GROUPS)
    if collective is Collective.ALL_REDUCE and message_bytes <= _value("custom_all_reduce.limit_bytes"):
        one_shot = group == 2 or message_bytes <= _value(f"custom_all_reduce.{group}.switch_bytes")
        return _link(f"custom_all_reduce.{group}.{'one' if one_shot else 'two'}_shot", assumed)
    if collective is Collective.ALL_TO_ALL and message_bytes <= _value("rccl_all_to_all.limit_bytes"):
        return _link(f"rccl_all_to_all.{group}", assumed)
    kernel = f"rccl_mesh_{collective}.{group}"
    efficiency = constant("collective.mesh.efficiency_frac")
    bytes_per_s = float(
        mesh_bandwidth(
            node_bytes_per_s=_value("mesh.node_bandwidth_bytes_per_s"),
            efficiency_frac=efficiency.value,
            group_gpus_count=gpus_count,
            node_gpus_count=_value("mesh.node_gpus_count"),
        )
    )
    if collective in _PASSES:
        bytes_per_s /= float(
            mesh_bytes(message_bytes=1.0, group_gpus_count=gpus_count, passes_count=_PASSES[collective])
        )
    return Link(_value(f"{kernel}.alpha_s"), bytes_per_s, kernel, (*assumed, efficiency.name))


def collective_time(
    *, collective: Collective, message_bytes: float, gpus_count: int, tier: Tier, inside_step: bool
) -> float:
    """Seconds of one collective; `inside_step` drops alpha, which each kernel of a step already pays. 0 for one GPU.

    Source: paper App. B.2. Raises DomainError as `link`.
    """
    if gpus_count == 1 and collective is not Collective.SEND_RECV:
        return 0.0
    served = link(collective=collective, message_bytes=message_bytes, gpus_count=gpus_count, tier=tier)
    alpha_s = 0.0 if inside_step else served.alpha_s
    return float(message_time(message_bytes=message_bytes, alpha_s=alpha_s, bytes_per_s=served.bytes_per_s))


def _measured_group(gpus_count: int, measured: tuple[int, ...]) -> tuple[int, tuple[str, ...]]:
    group = next((size for size in measured if size >= gpus_count), measured[-1])
    return group, () if group == gpus_count else (f"collective of {gpus_count} GPUs priced as {group}",)


def _link(kernel: str, assumed: tuple[str, ...]) -> Link:
    return Link(_value(f"{kernel}.alpha_s"), _value(f"{kernel}.bandwidth_bytes_per_s"), kernel, assumed)


def _value(name: str) -> float:
    record: Constant = constant(f"collective.{name}")
    return record.value
