"""The executor: runs a worker's stages through the steps of a run.

One compute thread takes any action of its stages' schedules whose inputs are in the inbox. Transport threads fill the inbox;
sender threads encode and send (``outbox``). The order of additions never depends on arrival (docs/architecture.md,
"Exactness").
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

from farflung.engines.base import Array, Engine, MicroBatch, StageRunner
from farflung.errors import TrainingError
from farflung.graph.cut import SubGraph, cut
from farflung.graph.ir import Use, ValueRef
from farflung.job.groups import is_frozen
from farflung.job.rates import rates
from farflung.messages.step_reports import StepReport
from farflung.plan.check import check_runnable
from farflung.plan.model import Stage
from farflung.protocol.holdings import Decision
from farflung.schedules import Progress, as_ready, get_schedule
from farflung.schedules.base import Action, ActionKind
from farflung.step.delayed_update import Delaying, is_stale_slot
from farflung.step.evaluation import Pass, ends_here, evaluate, generate, is_due
from farflung.step.frame_log import FrameLog
from farflung.step.hybrid.stage_server import Serving
from farflung.step.inbox import Inbox
from farflung.step.outbox import LinkUse, Outbox
from farflung.step.reduction.gradient_exchange import gradient_exchange
from farflung.step.run_setup import Committed, Phase, RunHooks, RunSetup
from farflung.step.stage_runners import open_stage
from farflung.step.state_copies import Copies
from farflung.step.step_meter import StepMeter
from farflung.step.step_vote import Verdicts
from farflung.step.sync.interpreter import synchronized
from farflung.step.sync.participation import Participation
from farflung.step.sync.replica_slots import is_replica_slot
from farflung.step.two_phase_commit import Committing
from farflung.step.value_transfer import ValueTransfer
from farflung.step.zeroth_order import Slopes
from farflung.telemetry.events import SpanKind
from farflung.telemetry.faults import fault_point
from farflung.telemetry.trace import SpanRing
from farflung.transports.base import Endpoint
from farflung.wire.frames import Frame

__all__ = ["Executor"]


class Executor:
    """One worker's part in one run. ``prepare`` and ``run`` are called on the same thread; ``on_frame`` on any."""

    def __init__(self, setup: RunSetup, endpoint: Endpoint, hooks: RunHooks, engine: Engine, device: str = "cpu") -> None:
        self.setup = setup
        self.hooks, self.engine = hooks, engine
        self.compute_device = device
        self.mailbox = Inbox(setup.most_keys)
        #: What this worker does when; given to ``hooks.event("trace", ...)`` after each step.
        self.trace = SpanRing()
        self.frames = FrameLog(self.trace)
        self.links = Outbox(endpoint, setup.peers, self.abort, self.trace)
        self.courier = ValueTransfer(setup, self.mailbox, self.links)
        self.exchange = gradient_exchange(setup, self.mailbox, self.links)
        #: How replicas agree, where the plan has a strategy for it.
        self.sync = synchronized(setup, self.mailbox, self.links, (self._note, self.trace, self.courier.gauge))
        probing = None if self.sync is None else self.sync.strategy.traits.zeroth_order
        self.serving = Serving(self, endpoint) if setup.job.plan.helpers else None
        #: What takes the place of a backward, where the strategy has none.
        self.slopes = Slopes(self, probing) if probing is not None else None
        self.step, self._save = setup.first_step, False
        #: Steps that the states are made of, now and in the newest checkpoint (or the first states, before there is one).
        self.committed, self._rested = setup.committed, 0
        self._kept_committed = setup.committed if setup.kept_committed is None else setup.kept_committed
        self.commits = Committing(self)
        self.copies = Copies(self, setup.rounds)
        self.delaying = Delaying(self)
        self._taking = Participation(setup, self.sync)
        self.verdicts = Verdicts(setup, hooks, self.mailbox, self.courier, self.copies.due, self._taking.part)
        #: Whether ``gradients`` shall hold those of the last step, as they are before clipping.
        self.keep_gradients = False
        self.gradients: dict[str, Array] = {}
        #: What evaluation and generation have opened.
        self.opened: dict[Phase, Pass] = {}
        self.evaluated = 0  # micro-batches of the evaluation under way
        #: stage -> samples in the micro-batch -> runner (all share the same states)
        self.runners: dict[int, dict[int, StageRunner]] = {}
        self._cuts = {rows: cut(graph, setup.plan.bounds) for rows, graph in setup.graphs.items()}

    # -- life ---------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Open the stages and give them their first states.

        Raises:
            PlanError: the plan's schedule can only be simulated.
            FarflungError: a graph is refused, data are missing, or states do not fit.
        """
        setup = self.setup
        check_runnable(setup.plan)
        for index in setup.own_stages:
            pieces = {rows: cuts[index] for rows, cuts in self._cuts.items()}
            self.runners[index] = open_stage(self.engine, self.compute_device, setup, index, pieces)
        self._begin_states()
        memory = self.courier.memory
        memory.load(self.hooks.first_optimizer(memory.marks) if memory.marks else {})
        if self.slopes is not None:
            self.slopes.open(self._cuts)

    def run(self) -> None:
        """All steps, with evaluations and checkpoints where the job wants them.

        Raises:
            TrainingError: the loss is not a number and the job says stop, or the run was aborted.
            FarflungError: what ``abort`` was given.
        """
        job = self.setup.job
        saved = (self.step if self.setup.kept_step is None else self.setup.kept_step) or -1
        if self.setup.keeps(self.step) and saved < self.step:
            self._checkpoint()  # the loss may have come before it was whole
            saved = self.step
        stop = self.setup.recovered and self.setup.evaluates(self.step) and self.evaluate()
        drifts, handed = self.sync is not None and self.sync.drifts, False
        while self.step < job.steps and not stop:
            stop = self._train_step(self.step) or ends_here(self, Phase.TRAIN)
            self.step += 1
            self.mailbox.poke()
            handed = stop and self._save  # others go on: the replicas do not end here
            looks = self.setup.evaluates(self.step)
            stop = (drifts and looks and self.evaluate()) or stop  # before the checkpoint: it may end the run
            ends = drifts and not handed and (stop or self.step == job.steps)  # its checkpoint comes when they agree
            if (self._save or self.setup.keeps(self.step)) and not ends:
                self._checkpoint()
                saved = self.step
            stop = (looks and not drifts and self.evaluate()) or stop
        if self.sync is not None and drifts and not handed:
            self.sync.agree("end")
            saved = -1  # what an earlier attempt wrote of this step is not what they agree on now
        if (job.checkpoint.at_end or self._save or self.setup.keeps(self.step)) and saved != self.step:
            self._checkpoint()
        if job.evaluate.batches and not stop:
            stop = self.evaluate()
        if job.generate.tokens and not stop:
            generate(self)
        self.links.flush()
        self._tell_trace()
        if self.serving is not None and self.serving.cost:
            self._note(f"{self.setup.device}: {self.serving.cost}", detail=True)
        if self.copies.cost:
            self._note(f"{self.setup.device}: {self.copies.cost}", detail=True)

    def abort(self, error: BaseException) -> None:
        """End the run from any thread; ``run`` raises ``error``, wherever it waits: for a value, for a link, for a flush."""
        self.mailbox.abort(error)
        self.links.abort(error)

    def close(self) -> None:
        """Stop the sender threads."""
        if self.serving is not None:
            self.serving.close()
        self.links.close()
        self.mailbox.clear()

    def on_frame(self, peer: str, frame: Frame) -> None:
        """A frame of this run arrived (transport thread). Data of a step farther ahead than the next one waits here."""
        if frame.kind == "data":
            self.mailbox.wait_until(lambda: is_due(self, frame.header))
        begin = self.trace.now()
        if frame.kind in ("part", "total"):
            self.exchange.receive(peer, frame)
        elif frame.kind in ("sync", "pieces", "pace", "norm") and self.sync is not None:
            self.sync.receive(peer, frame)
        elif frame.kind == "slope" and self.slopes is not None:
            self.slopes.receive(peer, frame)
        elif frame.kind in ("copy", "copied"):
            self.copies.receive(peer, frame)
        else:
            self.courier.receive(peer, frame)
            if frame.kind == "losses":
                self.verdicts.heard(int(frame.header["step"]))
        self.frames.decoded(peer, frame, begin)

    def evaluate(self) -> bool:
        """Forward-only micro-batches of the evaluation graph, through the same stages; whether the run shall end here."""
        return evaluate(self) or ends_here(self, Phase.EVAL)

    def _note(self, text: str, *, detail: bool = False) -> None:
        self.hooks.event("note", text=text, detail=detail)

    # -- states -------------------------------------------------------------------------------------------------------

    def base(self, stage: int) -> StageRunner:
        """The runner that owns the stage's states."""
        return next(iter(self.runners[stage].values()))

    def owner(self, state: str) -> int:
        """The stage that speaks for ``state`` (checkpoints, norms): the first that reads it."""
        return next(piece.stage for piece in self.setup.subgraphs if state in piece.states)

    def _speaks(self, state: str, stage: int) -> bool:
        """Whether the replica of ``stage`` here speaks for ``state``."""
        return stage in self.setup.speaks_for and self.owner(state) == stage

    def _begin_states(self) -> None:
        slots = self._first_states()
        if self.sync is not None:
            self.sync.open({index: self.base(index) for index in self.setup.own_stages}, self.step, slots)
        self.commits.loaded()

    def _first_states(self) -> dict[str, Array]:
        """Load what the run begins with; what a checkpoint keeps of replicas that train alone is given back."""
        replicas: dict[str, Array] = {}
        for index in self.setup.own_stages:
            runner = self.base(index)
            names = list(runner.subgraph.states)
            given = self.hooks.first_states(names) or {}
            runner.load(given)
            runner.initialize([name for name in names if name not in given])
            slots = self.hooks.first_optimizer(names)
            replicas |= {key: value for key, value in slots.items() if is_replica_slot(key)}
            others = {key: value for key, value in slots.items() if key not in replicas and not is_stale_slot(key)}
            runner.load_optimizer(others)  # none: afresh
            self.delaying.load(index, slots)
        return replicas

    def slots(self, stage: int, *, copy: bool = True) -> dict[str, Array]:
        """What belongs to the states of ``stage``, as ``<slot>/<parameter>``."""
        return {**self.base(stage).optimizer_states(copy=copy), **self.delaying.slots(stage)}

    def _checkpoint(self) -> None:
        fault_point("checkpoint.before_shard", step=self.step, device=self.setup.device)
        states: dict[str, Array] = {}
        optimizer: dict[str, Array] = {}
        for index in self.setup.own_stages:
            runner = self.base(index)
            mine = {name for name in runner.subgraph.states if self._speaks(name, index)}
            states |= {name: value for name, value in runner.states(copy=False).items() if name in mine}
            slots = self.slots(index, copy=False)
            optimizer |= {key: value for key, value in slots.items() if key.split("/", 1)[1] in mine}
        if self.sync is not None:
            optimizer |= self.sync.kept()
        if self.courier.memory.on:
            self.mailbox.wait_until(lambda: self.courier.memory.settled)
            optimizer |= self.courier.memory.kept()
        self.hooks.on_checkpoint(self.step, Committed(steps=self.committed, rested=self._rested), states, optimizer)
        self._kept_committed = self.committed

    # -- one step -----------------------------------------------------------------------------------------------------

    def _train_step(self, step: int) -> bool:
        """Run one step; True when it shall be the last."""
        meter = StepMeter()
        setup = self.setup
        self.courier.memory.begin(step)
        if self.sync is not None:
            self.sync.begin(step, rates(setup.job, step))
        self.commits.begin()
        rests = not self._taking.part(step, setup.device)
        if rests:
            losses = self._rest(step)
        else:
            losses = self._pipeline(step, meter) if self.slopes is None else self._probe(self.slopes, step, meter)
        begin = self.trace.now()
        with meter.waiting():
            losses = self.verdicts.gather(step, losses)
            if self.sync is None:
                self.exchange.finish(step, {index: self.base(index) for index in setup.own_stages})
            if self.slopes is None and not rests:
                self._exchange_uses(step)
            verdict = self.mailbox.take(("verdict", step))
            norm, scale = (None, None) if rests else self._norm(step)
        action_on_nan = self._judge(verdict, norm)
        with meter.waiting():
            if norm is None:
                self._check_gradients()
                self.commits.prepared()
                self.commits.agree(step)
        self.trace.note(SpanKind.WAIT, "for the end of the step", begin, step=step)
        fault_point("worker.before_update", step=step, device=self.setup.device)
        begin = self.trace.now()
        with meter.computing(setup.own_stages[0]):
            self._finish_step(step, scale, action_on_nan)
            if verdict.get("copy"):
                self.copies.take(step)
        self.trace.note(SpanKind.COMPUTE, "update", begin, step=step, stage=setup.own_stages[0])
        self._report(step, meter, losses, verdict, norm, skipped=action_on_nan is not None)
        self._save = bool(verdict.get("save"))
        fault_point("worker.after_update", step=step, device=self.setup.device)
        return bool(verdict["stop"])

    def _rest(self, step: int) -> dict[int, float]:
        """No local step: what the submitting process feeds for it is dropped."""
        if self.setup.job.data.kind == "caller":
            for index in self.setup.own_stages:
                replica = next(r for r in self.setup.plan.replicas_of(index) if r.device == self.setup.device)
                for micro_batch in replica.micro_batches:
                    self.data(self.setup.subgraphs[index], Phase.TRAIN, step, micro_batch)
        return {}

    def _pipeline(self, step: int, meter: StepMeter) -> dict[int, float]:
        """All forwards and backwards here; the losses that are made here."""
        if self.serving is not None:
            return self.serving.pipeline(step, meter)
        losses: dict[int, float] = {}
        todo = self._todo()
        while not all(progress.done for progress in todo.values()):
            begin = self.trace.now()
            with meter.waiting():
                action = self._next_action(step, todo)
            facts = {"stage": action.stage, "micro_batch": action.micro_batch, "step": step}
            self.trace.note(SpanKind.WAIT, f"for {action.kind.value}", begin, **facts)
            with meter.computing(action.stage):
                if action.kind is ActionKind.FORWARD:
                    self._forward(step, action, losses)
                else:
                    self._backward(step, action)
            todo[action.stage].take(action)
            if action.kind is ActionKind.FORWARD and action.stage == self.setup.loss_stage:
                self.verdicts.tell(step, losses)
        return losses

    def _probe(self, slopes: Slopes, step: int, meter: StepMeter) -> dict[int, float]:
        """Two forwards in place of a backward; the losses that are made here."""
        assert self.sync is not None
        losses = slopes.measure(step, meter)
        self.verdicts.tell(step, losses)
        with meter.waiting():
            self.sync.use_slopes(slopes.gather(step))
        return losses

    def _finish_step(self, step: int, scale: Array | None, action_on_nan: str | None) -> None:
        """The second phase: all are ready."""
        factor = None if scale is None else float(scale)
        if action_on_nan is None:
            self.apply(step, scale)
            self.commits.done(step, Decision(scale=factor))
        elif action_on_nan == "skip":
            self.leave_out(self.commits.before)
            self.commits.done(step, Decision(applied=False))
        else:
            self._roll_back()
            self.commits.done(step, None)

    def _todo(self) -> dict[int, Progress]:
        """The actions of a step, by stage."""
        setup = self.setup
        schedule = get_schedule(setup.plan.schedule)
        orders = schedule.actions(len(setup.plan.stages), setup.job.micro_batches)
        own = {i: [a for a in orders[i] if setup.places[i][a.micro_batch] == setup.device] for i in setup.own_stages}
        return {stage: Progress(order, free=as_ready(schedule)) for stage, order in own.items()}

    def _next_action(self, step: int, todo: Mapping[int, Progress]) -> Action:
        """The first of the stages' next actions whose inputs are all here (backward before forward, early stages first)."""
        heads = sorted((action for progress in todo.values() for action in progress.heads()), key=lambda a: (a.kind, a.stage))
        needs = [(action, self._needs(step, action)) for action in heads]
        chosen: list[Action] = []

        def ready() -> bool:
            chosen.extend(action for action, keys in needs if not chosen and self.mailbox.holds(keys))
            return bool(chosen)

        self.mailbox.wait_until(ready)
        return chosen[0]

    def _needs(self, step: int, action: Action) -> list[Hashable]:
        piece = self.setup.subgraphs[action.stage]
        if action.kind is ActionKind.FORWARD:
            return [self.courier.key(Phase.TRAIN, step, action.micro_batch, edge, gradient=False) for edge in piece.takes]
        return [self.courier.key(Phase.TRAIN, step, action.micro_batch, edge, gradient=True) for edge in piece.requires_gradients]

    def _forward(self, step: int, action: Action, losses: dict[int, float]) -> None:
        fault_point("worker.before_forward", step=step, device=self.setup.device)
        rows = self.setup.job.micro_batch_sizes[action.micro_batch]
        piece = self._cuts[rows][action.stage]
        values = {
            edge.value: self.mailbox.take(self.courier.key(Phase.TRAIN, step, action.micro_batch, edge, gradient=False))
            for edge in piece.takes
        }
        data = self._awaited_data(piece, step, action)
        self.courier.memory.read(action.stage, step, action.micro_batch, data)
        begin = self.trace.now()
        result = self.runners[action.stage][rows].forward(MicroBatch(step, action.micro_batch), values, data)
        self.trace.note(SpanKind.COMPUTE, "F", begin, stage=action.stage, micro_batch=action.micro_batch, step=step)
        for edge in piece.gives:
            self.courier.send(Phase.TRAIN, step, action.micro_batch, edge, result.values[edge.value], gradient=False)
        if "loss" in result.outputs:
            losses[action.micro_batch] = float(result.outputs["loss"])

    def _awaited_data(self, piece: SubGraph, step: int, action: Action) -> Mapping[str, Array]:
        begin = self.trace.now()
        data = self.data(piece, Phase.TRAIN, step, action.micro_batch)
        if data:
            self.trace.note(SpanKind.WAIT, "for data", begin, stage=action.stage, micro_batch=action.micro_batch, step=step)
        return data

    def data(self, piece: SubGraph, phase: Phase, step: int, micro_batch: int) -> Mapping[str, Array]:
        """The placeholders' values of ``piece`` for one micro-batch."""
        return self.hooks.provide(phase, step, micro_batch, piece.placeholders) if piece.placeholders else {}

    def _backward(self, step: int, action: Action) -> None:
        fault_point("worker.before_backward", step=step, device=self.setup.device)
        job = self.setup.job
        rows = job.micro_batch_sizes[action.micro_batch]
        piece = self._cuts[rows][action.stage]
        gradients: dict[ValueRef, list[Array]] = {}
        for edge in sorted(piece.requires_gradients, key=lambda edge: -edge.target):
            key = self.courier.key(Phase.TRAIN, step, action.micro_batch, edge, gradient=True)
            gradients.setdefault(edge.value, []).append(self.mailbox.take(key))
        runner = self.runners[action.stage][rows]
        begin = self.trace.now()
        if self.sync is not None and action.micro_batch + 1 == self._end(action.stage):
            self.sync.watch(action.stage, runner)
        weight = job.weight(action.micro_batch) / self.setup.part
        result = runner.backward(MicroBatch(step, action.micro_batch), gradients, weight)
        if self.sync is not None and action.micro_batch + 1 == self._end(action.stage):
            self.sync.watched(action.stage)
        self.trace.note(SpanKind.COMPUTE, "B", begin, stage=action.stage, micro_batch=action.micro_batch, step=step)
        for edge in piece.sends_gradients:
            self.courier.send(Phase.TRAIN, step, action.micro_batch, edge, result[edge.value], gradient=True)
        if self.sync is None:
            self.exchange.after_backward(step, action.stage, action.micro_batch, self.base(action.stage))

    def _end(self, stage: int) -> int:
        """Where the micro-batches of the replica of ``stage`` here end."""
        return next(replica.end for replica in self.setup.plan.replicas_of(stage) if replica.device == self.setup.device)

    # -- the end of a step --------------------------------------------------------------------------------------------

    def _exchange_uses(self, step: int) -> None:
        """Give every stage that holds a tied parameter the gradients of the uses elsewhere, and add them in order."""
        setup = self.setup
        for index in setup.own_stages:
            for use, gradient in self.base(index).use_gradients().items():
                for stage in setup.plan.stages:
                    if stage.index != index and use.state in setup.subgraphs[stage.index].states:
                        for device in self._to_tell(index, stage):
                            self.courier.send_use(step, (index, stage.index), device, use, gradient)
        for index in setup.own_stages:
            uses = {use: self.mailbox.take(("use", step, index, use.state, use.op)) for use in self._foreign_uses(index)}
            self.base(index).finish_gradients(uses)

    def _to_tell(self, index: int, stage: Stage) -> list[str]:
        """Which replicas of ``stage`` get the gradients of uses in the own stage ``index`` from this worker.

        Its own one; and, where it speaks for ``index``, those on devices that do not hold ``index`` themselves. With a sync
        strategy uses are added up inside each pipeline.
        """
        if self.sync is not None:
            return [stage.devices[self.setup.number]]
        mine, speaks = self.setup.plan.stages[index].devices, index in self.setup.speaks_for
        return [device for device in stage.devices if device == self.setup.device or (speaks and device not in mine)]

    def _foreign_uses(self, stage: int) -> list[Use]:
        """The uses elsewhere of what ``stage`` holds and trains; engines, too, leave out what the job freezes."""
        graph = self.setup.graph
        spec = self.setup.job.optimizer
        piece = self.setup.subgraphs[stage]
        trained = {name for name in piece.states if name in graph.trained and not is_frozen(spec, name)}
        positions = set(piece.positions)
        return [use for name in sorted(trained) for use in graph.gradient_uses[name] if graph.position[use.op] not in positions]

    def _norm(self, step: int) -> tuple[float | None, Array | None]:
        """Norm of all gradients over all stages and the factor that clips it; None where the job wants neither.

        A job that goes on after numbers that are not finite needs the norm, too: a finite loss may have gradients that are
        not, and the weights would be lost.
        """
        optimizer = self.setup.job.optimizer
        limit = None if optimizer.clip_by == "previous" else optimizer.clip_norm
        if limit is None and self.setup.job.on_nan == "stop":
            return None, None
        norms: dict[str, float] = {}
        for index in self.setup.own_stages:
            speaks = self._speaks if self.sync is None else (lambda name, stage: self.owner(name) == stage)
            norms |= {n: v for n, v in self.base(index).gradient_norms().items() if speaks(n, index)}
        self.commits.prepared()
        fault_point("worker.prepared", step=step, device=self.setup.device)
        for peer in self.setup.mates:
            self.courier.post(peer, "norms", step, {"norms": norms})
        for peer in self.setup.mates:
            norms |= self.mailbox.take(("norms", step, peer))["norms"]
        ordered = [norms[state.name] for state in self.setup.graph.parameters if state.name in norms]
        scale = None if limit is None else self.engine.clip_scale(ordered, limit)
        return math.sqrt(sum(norm * norm for norm in ordered)), scale

    def _judge(self, verdict: Mapping[str, object], norm: float | None) -> str | None:
        """None: apply the step; else the job's word for a loss (or norm) that is not a number."""
        if verdict["finite"] and (norm is None or math.isfinite(norm)):
            return None
        policy = self.setup.job.on_nan
        if policy == "stop":
            raise self._not_finite(
                f"the loss of micro-batches {verdict['bad']}" if not verdict["finite"] else "the norm of the gradients"
            )
        return policy

    def _check_gradients(self) -> None:
        """Refuse gradients that are not numbers where no norm was asked for, before any stage is updated anywhere."""
        for index in self.setup.own_stages:
            spoilt = self.base(index).spoilt_gradients()
            if spoilt:
                more = f" (and of {len(spoilt) - 1} more parameters of stage {index})" if len(spoilt) > 1 else ""
                raise self._not_finite(f"the gradient of {spoilt[0]!r}{more}")

    def _not_finite(self, what: str) -> TrainingError:
        return TrainingError(
            f"step {self.step}: {what} is not a finite number; lower the learning rate, clip gradients "
            '(optimizer.clip_norm), or set on_nan = "skip" or "rollback"'
        )

    def apply(self, step: int, scale: Array | None) -> None:
        """Update the states by the gradients of ``step``."""
        self.commits.writing()
        if self.keep_gradients and step == self.setup.job.steps - 1:
            self.gradients = {n: g for i in self.setup.own_stages for n, g in self.base(i).gradients().items()}
        current = rates(self.setup.job, step)
        self.delaying.end()
        if self.sync is not None:
            self.sync.finish(scale)
        else:
            for index in self.setup.own_stages:
                self.base(index).update(current, scale)
        self.committed += 1
        self._rested += self._taking.rested(step)

    def discard(self) -> None:
        """Drop gradients and activations."""
        for runners in self.runners.values():
            for runner in runners.values():
                runner.discard()

    def leave_out(self, before: Mapping[int, Mapping[str, Array]]) -> None:
        """Leave a step out: what was there ``before`` it stays."""
        self.commits.writing()
        self.discard()
        for index, states in before.items():
            self.base(index).load(states)
        self.delaying.end()

    def _roll_back(self) -> None:
        """Go back to the newest checkpoint."""
        self.commits.writing()
        self.discard()
        self._begin_states()
        self.committed = self._kept_committed

    def _report(
        self,
        step: int,
        meter: StepMeter,
        losses: Mapping[int, float],
        verdict: Mapping[str, Any],
        norm: float | None,
        *,
        skipped: bool,
    ) -> None:
        ordered = tuple(losses[index] for index in sorted(losses))
        everyone: list[float] = verdict["losses"]
        divergence = None if self.sync is None else self.sync.divergence
        seconds, wait, busy = time.perf_counter() - meter.begin, meter.wait, dict(meter.busy)
        report = StepReport(
            step=step,
            seconds=seconds,
            busy=sum(busy.values()),
            wait=wait,
            sent={},
            dense={},
            stage_busy=busy,
            loss=self._taking.mean(step, ordered) if ordered else None,
            losses=ordered,
            samples=self._taking.samples(step),
            skipped=skipped,
            rate=rates(self.setup.job, step)[-1],
            grad_norm=norm,
            divergence=divergence,
        )
        self.commits.told(report, everyone, self._taking.mean(step, everyone))

        def tell(use: LinkUse) -> None:
            self.hooks.on_step(replace(report, sent=use.sent, dense=use.dense, codecs=self.courier.gauge.take(step)))
            self._tell_trace()

        self.links.when_sent(step, tell)

    def _tell_trace(self) -> None:
        spans, lost = self.trace.drain()
        if spans or lost:
            self.hooks.event("trace", spans=spans, lost=lost)
