"""Which unit is verified when: the draws of this worker's peers, the digests of its own units, and the answers between them.

A verifier retains the states of a drawn step before the step is applied. After the step, it asks the worker of the unit for its
inputs, and computes the unit again at the end of a later step. So nobody waits for a verification. Digests of own units leave
with the step report, before anybody learns that a unit is verified. The broker compares (``broker.verification``).

Cost: a digest of all values between stages and of all gradients of parameters, one copy of the states for each drawn unit, and
the forward and backward of the unit.
"""

from __future__ import annotations

import threading

from farflung.engines.encoded_value import arrays_of
from farflung.errors import FarflungError, WireError
from farflung.graph.cut import SubGraph
from farflung.messages.data import InputsWanted, UnitInputs
from farflung.messages.router import PeerRouter
from farflung.plan.verification import Audit, Digests, Transfer, Unit, drawn_units, verifiers
from farflung.schedules.base import Action, ActionKind
from farflung.step.actions import ActionInputs, ActionResult
from farflung.step.context import StepContext
from farflung.step.reduction.base import GradientPart
from farflung.step.stages.local_stages import LocalStages
from farflung.step.transfer.outbox import OutgoingMessage
from farflung.step.verification.recomputation import Recomputation
from farflung.step.verification.retained_inputs import RetainedInputs
from farflung.step.verification.unit_digests import given_gradients, given_values, part_digest, taken
from farflung.step.verification.unit_inputs import UnitInputArrays, pack_inputs, unpack_inputs
from farflung.transports.base import Urgency

__all__ = ["Verification"]

#: Steps after which inputs that did not come are reported as missing.
_PATIENCE = 32


class Verification:
    """One worker's part. The compute thread calls all methods but ``receive_*`` and ``recheck``."""

    def __init__(self, context: StepContext, stages: LocalStages) -> None:
        self._context, self._stages = context, stages
        self._on = context.setup.job.verify.share > 0
        self._retained = RetainedInputs(self._answer)
        self._recomputation = Recomputation(context, stages)
        self._gave: dict[Transfer, bytes] = {}
        self._took: dict[Transfer, bytes] = {}
        self._audits: list[Audit] = []
        #: Guards the next two: other threads add to them.
        self._lock = threading.Lock()
        #: Units that are verified here, and whom to ask for their inputs.
        self._open: dict[Unit, str] = {}
        self._arrived: dict[Unit, UnitInputArrays | None] = {}

    def register(self, router: PeerRouter) -> None:
        """Register what takes messages of other replicas (transport threads)."""
        router.register(InputsWanted, self.receive_wanted)
        router.register(UnitInputs, self.receive_inputs)

    # -- own units ----------------------------------------------------------------------------------------------------

    def computed(self, step: int, action: Action, inputs: ActionInputs, result: ActionResult) -> None:
        """Store the digests of what ``action`` took and gave, and retain what it took."""
        if not self._on or action.kind is ActionKind.WEIGHT:
            return
        setup = self._context.setup
        piece, index = setup.subgraphs[action.stage], action.micro_batch
        replicated = len(setup.plan.stages[action.stage].devices) > 1
        mine = self._retained.of(Unit(step, action.stage, index)) if replicated else UnitInputArrays()
        if action.kind is ActionKind.FORWARD:
            mine.took_values(inputs.values)
            self._took |= taken(piece, index, UnitInputArrays(values=mine.values))
            self._gave |= given_values(piece, index, arrays_of(result.values))
        else:
            mine.took_gradients(inputs.gradients)
            self._took |= taken(piece, index, UnitInputArrays(gradients=mine.gradients))
            self._gave |= given_gradients(piece, index, arrays_of(result.values))

    def part(self, part: GradientPart) -> None:
        """Store the digest of the gradients of parameters of one micro-batch."""
        if self._on:
            self._gave |= part_digest(part.stage, part.end - 1, part.gradients)

    # -- a step -------------------------------------------------------------------------------------------------------

    def before_update(self, step: int) -> None:
        """Retain the states with which drawn units of ``step`` were computed."""
        if not self._on:
            return
        setup, drawn = self._context.setup, []
        for device, key in setup.secrets.items():
            for unit in drawn_units(setup.plan, step, setup.job.verify.share, key, device):
                chosen = verifiers(setup.plan, unit)
                if setup.device in chosen[:2]:
                    drawn.append(unit)
                if chosen[0] == setup.device:
                    with self._lock:
                        self._open[unit] = device
        self._recomputation.retain(drawn)

    def take_report(self, step: int) -> tuple[Digests, Digests, tuple[Audit, ...]]:
        """Verify units whose inputs are here. Return what the own units of ``step`` gave and took, and what was verified."""
        with self._lock:
            late = [unit for unit in self._open if unit.step <= step - _PATIENCE and unit not in self._arrived]
            ready = [unit for unit in self._arrived if unit in self._open]
        for unit in (*late, *ready):
            self._verify(unit)
        found = dict(self._gave), dict(self._took), tuple(self._audits)
        self._gave.clear()
        self._took.clear()
        self._audits.clear()
        return found

    def end_step(self, step: int) -> None:
        """The report of ``step`` is made: give the inputs of own units away, and ask for those of drawn units."""
        if not self._on:
            return
        self._retained.reported(step)
        with self._lock:
            ask = [(unit, device) for unit, device in self._open.items() if unit.step == step]
        for unit, device in ask:
            self._ask(unit, device)

    def recheck(self, unit: Unit, verifier: str) -> None:
        """Verify ``unit`` with the inputs that ``verifier`` was sent (the session's thread)."""
        with self._lock:
            self._open[unit] = verifier
        self._ask(unit, verifier)

    def receive_wanted(self, peer: str, message: InputsWanted) -> None:
        """``peer`` verifies a unit (transport thread).

        Raises:
            WireError: ``peer`` is no replica of the stage.
        """
        self._retained.wanted(peer, self._unit(peer, message))

    def receive_inputs(self, peer: str, message: UnitInputs) -> None:
        """Store the inputs of a unit that is verified here (transport thread).

        Raises:
            WireError: nobody has asked ``peer`` for these inputs, or they do not fit the stage.
        """
        unit = self._unit(peer, message)
        piece = self._piece(unit)
        with self._lock:
            if self._open.get(unit) != peer:
                return  # too late
        inputs = unpack_inputs(message, piece, self._context.transfer.largest, self._context.setup.budget)
        with self._lock:
            self._arrived[unit] = inputs

    # -- parts --------------------------------------------------------------------------------------------------------

    def _unit(self, peer: str, message: InputsWanted | UnitInputs) -> Unit:
        plan, stage = self._context.setup.plan, message.stage
        known = stage in self._context.setup.own_stages and peer in plan.stages[stage].devices
        if not self._on or not known or message.micro_batch >= len(plan.micro_batch_sizes):
            raise WireError(f"{peer} verifies no unit of stage {stage} here")
        return Unit(message.step, stage, message.micro_batch)

    def _piece(self, unit: Unit) -> SubGraph:
        return self._stages.runner(unit.stage, unit.micro_batch).subgraph

    def _ask(self, unit: Unit, device: str) -> None:
        wanted = InputsWanted(run=self._context.setup.run, step=unit.step, stage=unit.stage, micro_batch=unit.micro_batch)
        self._context.transfer.post(device, wanted)

    def _answer(self, peer: str, unit: Unit, inputs: UnitInputArrays | None) -> None:
        message = pack_inputs(self._context.setup.run, unit, self._piece(unit), inputs)
        self._context.outbox.post(peer, OutgoingMessage(make=lambda: message, urgency=Urgency.BULK, waits=False))

    def _verify(self, unit: Unit) -> None:
        with self._lock:
            inputs = self._arrived.pop(unit, None)
            asked = self._open.pop(unit)
        known = self._recomputation.can(unit)
        if not known and asked == self._context.setup.plan.device_of(unit.stage, unit.micro_batch):
            return  # nobody waits for a first opinion
        if inputs is None or not known:
            self._audits.append(Audit(unit=unit, took={}, gave={}))
            return
        took = taken(self._piece(unit), unit.micro_batch, inputs)
        try:
            gave = self._recomputation.compute(unit, inputs)
        except FarflungError:  # inputs with which nobody could compute
            gave = {}
        self._audits.append(Audit(unit=unit, took=took, gave=gave))
        self._retained.verified(unit, inputs)
