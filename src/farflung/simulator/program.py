"""A plan lowered to numbers: what each device does in a step, how long it takes, and which frames it sends.

Actions are numbered from 0 within one step; a later step repeats them. Beside the schedule's F, B and W each device has a
tail after its last one: X exchanges gradients (of replicas, of tied parameters), N norms (where the job clips), U updates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Gate", "Message", "Program", "ProgramAction", "ProgramLink"]

#: (link, target action, bytes on the wire, encode seconds, decode seconds)
Message = tuple[int, int, float, float, float]
#: Another track of the device, and how far it must be ahead.
Gate = tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLink:
    """A directed link between two devices (indices into ``Program.devices``): seconds, bytes per second."""

    source: int
    target: int
    latency: float
    bandwidth: float
    latency_back: float


@dataclass(slots=True, kw_only=True)
class ProgramAction:
    """One action. ``needed``: values that must arrive first. ``local``: actions on the same device that its results feed.

    ``rank``: among actions that could start, the least starts first. ``takes``, ``gives``: bytes of memory that its start
    takes and its end gives back.
    """

    device: int
    stage: int
    kind: str
    micro_batch: int
    seconds: float
    rank: int = 0
    needed: int = 0
    local: list[int] = field(default_factory=list)
    sends: list[Message] = field(default_factory=list)
    takes: float = 0.0
    gives: float = 0.0

    @property
    def name(self) -> str:
        """As people write it: ``2F0``; the tail has no micro-batch."""
        return f"{self.stage}{self.kind}{self.micro_batch}" if self.micro_batch >= 0 else f"{self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One step of a plan. ``tracks[d]``: for each stage of device d its actions in order; ``tail[d]``: what d does after them.
    A stage that takes what has arrived (``schedules.as_ready``) has a track of backwards and one of forwards; ``gates[d]``: for
    each of them the other one, and by how many actions that must be ahead at least (negative: may be behind); None: no matter.

    ``always``, ``update``: bytes of memory per device, through the step and on top of that in the update. ``passing``: bytes
    on top while the device computes a stage's action (largest). ``uplink``, ``downlink``: bytes per second that all links
    of a device share, by device (infinite: no limit); ``region_uplink``, ``region_downlink`` by region of ``region``.
    ``hosts``: (capacity, devices) of devices that slow each other down (``schedules.shared_host``).
    """

    devices: tuple[str, ...]
    actions: tuple[ProgramAction, ...]
    tracks: tuple[tuple[tuple[int, ...], ...], ...]
    tail: tuple[tuple[int, ...], ...]
    links: tuple[ProgramLink, ...]
    samples: int
    gates: tuple[tuple[Gate, ...], ...]
    always: tuple[float, ...] = ()
    passing: tuple[float, ...] = ()
    update: tuple[float, ...] = ()
    caps: tuple[tuple[float, tuple[int, ...]], ...] = ()
    hosts: tuple[tuple[float, tuple[int, ...]], ...] = ()
