"""A device and a directed link, as the planner sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from farflung.errors import InputError
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds

__all__ = ["Device", "DeviceKind", "Link"]

DeviceKind = Literal["cpu", "cuda", "mps", "xpu"]
_KINDS: tuple[DeviceKind, ...] = get_args(DeviceKind)
_NO_TIME, _MAX_OVERHEAD = Seconds(0.0), Seconds(1.0)
#: As many as ``farflung join --devices`` takes.
_MOST_RANKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One machine (or accelerator) that can hold stages.

    ``memory``: bytes that training may use where it computes. ``speed``: the datasheet's peak ``S*`` in FLOP/s.
    ``speed_factor``: ``lambda``, the share of the peak that a warm-up profile reached (FusionLLM section 3.5).
    ``convolution``: how many times as fast as other operators convolutions run, by their FLOPs (same warm-up).
    ``overhead``: seconds that each operator costs beside its FLOPs, forward and backward alike (same warm-up).
    ``disk``: free bytes for checkpoints and data (None: not known). ``reliable``: it stays, and reconnects after a break; an
    unreliable device may leave without warning (Hybrid-PS section 3.1.1). ``uplink``, ``downlink``: what all its links together
    carry at most (None: not limited). ``nat``: the NAT that it is behind, so that it can dial out and not be dialled, except by
    devices behind the same ("": none). ``mtbf``: mean time between its failures (None: it is not known to fail).
    ``engine``: what computes, by name and version ("": not known). ``lacks``: operators of the allow-list that it does not
    support. ``precisions``: of jobs that the engine supports (empty: not known, so all).
    ``host``: devices with the same name here share the cores of one host ("": it shares with nobody), and ``host_capacity`` of
    them reach their full speed at the same time; of k that compute at once, each reaches ``host_capacity / k`` of it.
    ``ranks``: of a site, which compute as many micro-batches at once; ``memory`` and ``speed`` are those of all together.
    ``rank_latency``, ``rank_rate``: an exchange of M bytes, in which each rank sends its part to all others, takes
    ``rank_latency + M / rank_rate`` (None: not known, no time).
    ``helped``: how many times as fast it computes micro-batches with the devices that help it; an update gains nothing by them.
    ``offload``: bytes of its disk for states that do not fit into memory (None: none), and ``offload_rate`` what an update reads
    and writes there per second.
    """

    name: str
    memory: Bytes
    speed: FlopsPerSecond
    speed_factor: float = 1.0
    overhead: Seconds = _NO_TIME
    convolution: float = 1.0
    region: str = ""
    kind: DeviceKind = "cpu"
    disk: Bytes | None = None
    reliable: bool = True
    uplink: BytesPerSecond | None = None
    downlink: BytesPerSecond | None = None
    nat: str = ""
    mtbf: Seconds | None = None
    host: str = ""
    host_capacity: float = float("inf")
    engine: str = ""
    lacks: frozenset[str] = frozenset()
    precisions: tuple[str, ...] = ()
    ranks: int = 1
    rank_latency: Seconds = _NO_TIME
    rank_rate: BytesPerSecond | None = None
    offload: Bytes | None = None
    offload_rate: BytesPerSecond | None = None
    helped: float = 1.0

    def __post_init__(self) -> None:
        if wrong := list(self._wrong()):
            raise InputError("; ".join(wrong))

    def _wrong(self) -> Iterator[str]:  # noqa: C901 - one rule after the other
        """What no device can be."""
        if not self.name:
            yield 'a device needs a name; write e.g. name = "laptop"'
        if not self.memory > 0:
            yield f'device {self.name!r}: memory must be more than 0, got {self.memory}; write e.g. "8 GB"'
        if not self.speed > 0:
            yield f'device {self.name!r}: speed must be more than 0, got {self.speed}; write e.g. "5 TFLOP/s"'
        if not 0 < self.speed_factor < float("inf"):
            yield f"device {self.name!r}: speed_factor must be more than 0, got {self.speed_factor}; write e.g. 0.5"
        if not 0 < self.convolution < float("inf"):
            yield f"device {self.name!r}: convolution must be more than 0, got {self.convolution}; write e.g. 1.5"
        if not self.host_capacity > 0:
            yield f"device {self.name!r}: host_capacity must be more than 0, got {self.host_capacity}; write e.g. 2.0"
        if not 1 <= self.ranks <= _MOST_RANKS:
            yield f"device {self.name!r}: ranks must be from 1 to {_MOST_RANKS}, got {self.ranks}; leave it out if it is no site"
        if not 0 <= self.rank_latency < float("inf"):
            yield f'device {self.name!r}: rank_latency must be at least 0, got {self.rank_latency}; write e.g. "50 us"'
        for key, cap in (("uplink", self.uplink), ("downlink", self.downlink), ("rank_rate", self.rank_rate)):
            if cap is not None and not cap > 0:
                yield f'device {self.name!r}: {key} must be more than 0, got {cap}; write e.g. "20 Mbit/s"'
        if self.mtbf is not None and not 0 < self.mtbf < float("inf"):
            yield f'device {self.name!r}: mtbf must be more than 0, got {self.mtbf}; write e.g. "6 h"'
        if (self.offload is None) != (self.offload_rate is None):
            yield f'device {self.name!r}: offload and offload_rate belong together; write both, e.g. "20 GB" and "500 MB/s"'
        for key, least in (("offload", self.offload), ("offload_rate", self.offload_rate)):
            if least is not None and not least > 0:
                yield f"device {self.name!r}: {key} must be more than 0, got {least}; leave it out if there is none"
        if not 0 <= self.overhead <= _MAX_OVERHEAD:
            yield (
                f"device {self.name!r}: overhead must be from 0 to {_MAX_OVERHEAD}, got {self.overhead}; "
                'write e.g. "20 us" (seconds that each operator costs beside its FLOPs)'
            )
        if self.kind not in _KINDS:
            yield f"device {self.name!r}: unknown kind {self.kind!r}; known are {', '.join(_KINDS)}"

    @property
    def achieved(self) -> FlopsPerSecond:
        """``S(p) = lambda_p * S*(p)`` in FLOP/s, with those that help it."""
        return FlopsPerSecond(self.speed * self.speed_factor * self.helped)

    def work(self, flops: float, convolutions: float) -> float:
        """FLOPs that take as long at ``achieved`` as ``flops``, of which ``convolutions`` belong to convolutions."""
        return flops + convolutions * (1.0 / self.convolution - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The directed link from device ``source`` to device ``target``: one-way latency and bandwidth."""

    source: str
    target: str
    latency: Seconds
    bandwidth: BytesPerSecond

    def seconds(self, nbytes: float) -> Seconds:
        """``T_comm(M) = alpha + M / beta``; nothing to send takes no time."""
        return Seconds(self.latency + nbytes / self.bandwidth) if nbytes > 0 else Seconds(0.0)
