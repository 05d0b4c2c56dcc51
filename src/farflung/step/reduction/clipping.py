"""Clipping by the norm of the step before (``optimizer.clip_by = "previous"``), for layers that are updated before all gradients
are known, and for gradients that are averaged layer by layer.

The norm is that of the gradients as they are applied, before they are scaled, over all stages of a pipeline: of means where
replicas average gradients, so all scale alike; of the replica's own where it trains alone. A step without one before it is not
clipped. Source: our own; the factor is that of ``torch.nn.utils.clip_grad_norm_``, one step stale. Cost: a pass over the
gradients, and with several stages a small message to each other one in each step, which is awaited before the next update only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from farflung.engines.base import Array
from farflung.errors import WireError
from farflung.messages.data import PreviousNorms
from farflung.step.inbox import Inbox
from farflung.step.run_setup import RunSetup
from farflung.step.transfer.outbox import Outbox, OutgoingMessage
from farflung.transports.base import Urgency

__all__ = ["PreviousNorm"]


class PreviousNorm:
    """One worker's part; ``receive`` is called on any thread, all else on the compute thread. ``wanted``: the job asks."""

    def __init__(self, setup: RunSetup, inbox: Inbox, links: Outbox) -> None:
        optimizer = setup.job.optimizer
        self._limit = optimizer.clip_norm if optimizer.clip_by == "previous" else None
        self.wanted = self._limit is not None
        self._setup, self._inbox, self._links = setup, inbox, links
        #: Norms by parameter: of the step under way, and of the one reported last.
        self._norms: dict[str, float] = {}
        self._reported: tuple[int, dict[str, float]] | None = None
        self._known: float | None = None

    @cached_property
    def _owners(self) -> dict[str, int]:
        """Which stage counts a state's norm: the first that has it."""
        return {name: piece.stage for piece in reversed(self._setup.subgraphs) for name in piece.states}

    def resume(self, retained: Array) -> None:
        """Continue with the norm that a checkpoint holds."""
        self._known = float(retained.reshape(-1)[0])

    @property
    def retained(self) -> Array | None:
        """What a checkpoint must hold; waits for the reports of other stages."""
        self._settle()
        return None if self._known is None else np.array([self._known])

    def record(self, stage: int, gradients: Mapping[str, Array]) -> None:
        """Take the norms of gradients of ``stage`` that are about to be applied, finished and not scaled."""
        for name, gradient in gradients.items():
            if stage == self._owners[name]:
                self._norms[name] = float(np.linalg.norm(gradient.reshape(-1).astype(np.float32, copy=False)))

    def scale(self) -> Array | None:
        """What to multiply the step's gradients by (None: nothing).

        Raises:
            BaseException: what ended the run meanwhile.
        """
        self._settle()
        if self._limit is None or self._known is None:
            return None
        return np.asarray(min(1.0, self._limit / (self._known + 1e-6)), np.float32)

    def end_step(self, step: int) -> None:
        """All updates of ``step`` are done."""
        if not self.wanted:
            return
        self._settle()  # of a step without any update
        self._reported, self._norms = (step, self._norms), {}
        message = PreviousNorms(run=self._setup.run, step=step, norms=self._reported[1])
        for peer in self._setup.update_group:
            self._links.post(peer, OutgoingMessage(make=lambda: message, urgency=Urgency.CONTROL, step=step, waits=False))

    def receive(self, peer: str, message: PreviousNorms) -> None:
        """Store norms of another stage, which came from ``peer`` (transport thread).

        Raises:
            WireError: ``peer`` is of another pipeline, or the job does not clip by previous norms.
        """
        if peer not in self._setup.update_group or not self.wanted:
            raise WireError(f"{peer} does not report norms to this worker in this run")
        self._inbox.put(("norm", message.step, peer), message.norms)

    def _settle(self) -> None:
        if self._reported is None:
            return
        step, norms = self._reported
        for peer in self._setup.update_group:
            norms = norms | self._inbox.take(("norm", step, peer))
        self._reported = None
        ordered = [norms[state.name] for state in self._setup.graph.parameters if state.name in norms]
        if ordered:
            self._known = math.sqrt(sum(norm * norm for norm in ordered))
