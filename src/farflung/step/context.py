"""What the parts of one worker's step share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farflung.engines.base import Array, Engine
from farflung.graph.cut import SubGraph
from farflung.step.inbox import Inbox
from farflung.step.run_setup import Phase, RunHooks, RunSetup
from farflung.step.transfer.frame_log import FrameLog
from farflung.step.transfer.outbox import Outbox
from farflung.step.transfer.value_transfer import ValueTransfer
from farflung.telemetry.trace import SpanRing
from farflung.transports.base import Endpoint

__all__ = ["StepContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """The run, its surroundings, and the ways in and out. ``device``: the device that computes (``cpu``, ``cuda:0``)."""

    setup: RunSetup
    hooks: RunHooks
    engine: Engine
    device: str
    inbox: Inbox
    outbox: Outbox
    transfer: ValueTransfer
    #: What this worker does when. ``hooks.on_trace`` gets it after each step.
    trace: SpanRing
    frames: FrameLog

    @classmethod
    def open(cls, setup: RunSetup, endpoint: Endpoint, hooks: RunHooks, engine: Engine, device: str) -> StepContext:
        """Return the context of one worker's part in one run."""
        inbox, trace = Inbox(setup.most_keys), SpanRing()
        outbox = Outbox(endpoint, setup.peers, inbox.abort, trace)
        return cls(
            setup=setup,
            hooks=hooks,
            engine=engine,
            device=device,
            inbox=inbox,
            outbox=outbox,
            transfer=ValueTransfer(setup, inbox, outbox),
            trace=trace,
            frames=FrameLog(trace),
        )

    def note(self, text: str, *, detail: bool = False) -> None:
        """Send a line for people to ``hooks``."""
        self.hooks.on_note(text, detail=detail)

    def data(self, piece: SubGraph, phase: Phase, step: int, micro_batch: int) -> Mapping[str, Array]:
        """Return the values of the placeholders of ``piece`` for one micro-batch."""
        return self.hooks.provide(phase, step, micro_batch, piece.placeholders) if piece.placeholders else {}
