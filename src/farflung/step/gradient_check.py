"""Norm and finiteness of a step's gradients over all stages, before any worker updates a state."""

from __future__ import annotations

import math

import numpy as np

from farflung.engines.base import Array
from farflung.errors import TrainingError
from farflung.messages.data import Norms, Verdict
from farflung.step.context import StepContext
from farflung.step.stages.local_stages import LocalStages

__all__ = ["GradientCheck"]

#: Seconds for which a worker that only knows by hearsay whose numbers are not finite leaves the report to those who know better.
_HEARSAY = 10.0


class GradientCheck:
    """One worker's part (compute thread)."""

    def __init__(self, context: StepContext, stages: LocalStages, faulty: int = 0, hearsay: float = _HEARSAY) -> None:
        """``faulty``: a sync strategy tolerates any gradients of so many replicas (see ``sync.Traits``). ``hearsay``: seconds."""
        self._context, self._stages, self._faulty, self._hearsay = context, stages, faulty, hearsay
        #: Which worker's norm of this step is not finite; this worker's comes first (empty: all are finite).
        self._spoilt_norms = ""
        job = context.setup.job
        self._limit = None if job.optimizer.clip_by == "previous" else job.optimizer.clip_norm
        #: Whether the norm of all gradients is needed. A job that continues after numbers that are not finite needs it, too: a
        #: finite loss may have gradients that are not, and the weights would be lost.
        self.needs_norm = self._limit is not None or job.on_nan != "stop" or stages.loss_scale.on

    def local_norms(self) -> dict[str, float]:
        """Return the norms that this worker contributes, by parameter."""
        setup, norms = self._context.setup, dict[str, float]()
        by_pipeline = setup.plan.sync is not None
        for index, runner in self._stages.bases.items():
            for name, norm in runner.gradient_norms().items():
                if setup.owner(name) == index if by_pipeline else self._stages.owns(name, index):
                    norms[name] = norm
        return norms

    def exchange(self, step: int, norms: dict[str, float]) -> tuple[float, Array | None]:
        """Send ``norms`` to the workers of the same update.

        Return the norm of all gradients without the loss scale, and the factor that clips them and removes that scale.
        """
        self._spoilt_norms = "" if all(map(math.isfinite, norms.values())) else self._context.setup.device
        setup, transfer, inbox = self._context.setup, self._context.transfer, self._context.inbox
        for peer in setup.update_group:
            transfer.post(peer, Norms(run=setup.run, step=step, norms=dict(norms)))  # encoded later: a copy
        for peer in setup.update_group:
            found = inbox.take(("norms", step, peer))
            if not all(map(math.isfinite, found.values())):
                self._spoilt_norms = self._spoilt_norms or peer
            norms |= found
        ordered = [norms[state.name] for state in setup.graph.parameters if state.name in norms]
        loss_scale = self._stages.loss_scale
        ordered = [norm / loss_scale.factor for norm in ordered]
        scale = None if self._limit is None else self._context.engine.clip_scale(ordered, self._limit)
        if loss_scale.on:  # a power of 2: gradients have the bits that two products give
            factor = np.float32(1.0 / loss_scale.factor)
            scale = np.asarray(factor if scale is None else scale * factor, np.float32)
        return math.sqrt(sum(norm * norm for norm in ordered)), scale

    def receive(self, peer: str, message: Norms) -> None:
        """Store the norms of ``peer`` (transport thread)."""
        self._context.inbox.put(("norms", message.step, peer), message.norms)

    def judge(self, step: int, verdict: Verdict, norm: float | None) -> str | None:
        """Return None if the step may be applied, else the job's ``on_nan`` (``skip`` or ``rollback``).

        Raises:
            TrainingError: the loss or the norm is not finite, and the job says ``stop``.
        """
        if self._tolerates(verdict) and (norm is None or math.isfinite(norm)):
            return None
        if not self._stages.loss_scale.exhausted:
            return "skip"
        policy = self._context.setup.job.on_nan
        if policy == "stop":
            losses = f"the loss of micro-batches {list(verdict.bad)}"
            raise self._not_finite(step, losses if not verdict.finite else "the norm of the gradients", self._origin(verdict))
        return policy

    def _tolerates(self, verdict: Verdict) -> bool:
        """Return whether the losses are finite, except those of replicas that the sync strategy tolerates.

        With a loss scale of its own, a replica judges its own losses.
        """
        setup = self._context.setup
        if self._stages.loss_scale.on and setup.plan.sync is not None:
            own = setup.pipeline[setup.loss_stage]
            return all(setup.places[setup.loss_stage][index] != own for index in verdict.bad)
        if verdict.finite or not self._faulty:
            return verdict.finite
        return (
            len({device for index, device in enumerate(setup.places[setup.loss_stage]) if index in verdict.bad}) <= self._faulty
        )

    def _origin(self, verdict: Verdict) -> str:
        """Return the worker that computed what is not finite."""
        setup = self._context.setup
        made = [setup.places[setup.loss_stage][index] for index in verdict.bad if index < len(setup.places[setup.loss_stage])]
        return made[0] if made else self._spoilt_norms

    def check_local(self, step: int) -> None:
        """Check the gradients of the own stages, where no norm was needed.

        A strategy that tolerates faulty replicas judges all gradients when it merges them: here nothing is checked.

        Raises:
            TrainingError: one is not finite.
        """
        for index, runner in self._stages.bases.items() if not self._faulty else ():
            bad = runner.spoilt_gradients()
            if bad:
                more = f" (and of {len(bad) - 1} more parameters of stage {index})" if len(bad) > 1 else ""
                raise self._not_finite(step, f"the gradient of {bad[0]!r}{more}", self._context.setup.device)

    def _not_finite(self, step: int, what: str, origin: str) -> TrainingError:
        """Return the error. The worker ``origin`` is to blame, or the peer that sent this worker what is not finite."""
        error = TrainingError(
            f"step {step}: {what} is not a finite number; lower the learning rate, clip gradients "
            '(optimizer.clip_norm), or set on_nan = "skip" or "rollback"'
        )
        own, spoilt = self._context.setup.device, self._context.transfer.spoilt
        if origin != own or not spoilt.knows_origin(step):
            # The broker judges by the first report, and then ends the attempt. A silent origin is reported after this wait.
            self._context.inbox.wait_until(lambda: False, self._hearsay)
        blamed = spoilt.source(step) if origin == own else origin
        return error.blaming("" if blamed == own else blamed)
