"""The stages of one worker: their runners and states, from the first values to a checkpoint.

All arrays that belong to a stage are reached through here: by the steps that change them, and by everything that copies them
(checkpoints, copies for other workers, the states that an ended attempt leaves).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property

from farflung.checkpoint import pack
from farflung.engines.base import Array, Engine, StageRunner
from farflung.graph.cut import SubGraph, cut
from farflung.job.rates import rates
from farflung.step.run_setup import RunHooks, RunSetup
from farflung.step.stages.delayed_update import DelayedUpdate, is_stale_slot
from farflung.step.stages.loss_scale import LossScale, is_scale_slot
from farflung.step.stages.stage_runners import open_stage
from farflung.step.sync.replica_slots import is_replica_slot

__all__ = ["LocalStages"]

#: States are read and loaded in groups of about so many bytes: a stage is never twice in memory.
_GROUP_BYTES = 64 << 20


class LocalStages:
    """The runners of the own stages. Only one thread at a time may use them: the compute thread, or whoever retains them."""

    def __init__(self, setup: RunSetup) -> None:
        self.setup = setup
        self.delayed = DelayedUpdate(setup)
        self.loss_scale = LossScale(setup)
        #: Applied steps that the states consist of: now, and in the newest checkpoint (before there is one: at the start).
        self.committed = setup.committed
        self._saved_committed = setup.committed if setup.checkpoint_committed is None else setup.checkpoint_committed
        #: Whether the states are those of a step's boundary: not while an update writes them.
        self.consistent = False
        #: stage -> samples in the micro-batch -> runner (the runners of a stage share their states)
        self._runners: dict[int, dict[int, StageRunner]] = {}
        #: What holds the states (None: the stages are not open).
        self.engine: Engine | None = None

    # -- runners ------------------------------------------------------------------------------------------------------

    def open(self, engine: Engine, device: str) -> None:
        """Open the runners, without states.

        Raises:
            FarflungError: the engine refuses a graph.
        """
        self.engine = engine
        for index in self.setup.own_stages:
            pieces = {rows: cuts[index] for rows, cuts in self.cuts.items()}
            self._runners[index] = open_stage(engine, device, self.setup, index, pieces, scheduled=True)

    @cached_property
    def cuts(self) -> Mapping[int, tuple[SubGraph, ...]]:
        """Samples in the micro-batch -> the sub-graphs of all stages.

        Of a served model only the largest graph, which owns the states; the others are cut where the states are.
        """
        setup = self.setup
        graphs = {max(setup.graphs): setup.graph} if setup.graph.serves else setup.graphs
        return {rows: cut(graph, setup.plan.bounds) for rows, graph in graphs.items()}

    def runner(self, stage: int, micro_batch: int) -> StageRunner:
        """Return the runner of ``stage`` for ``micro_batch``."""
        return self._runners[stage][self.setup.job.micro_batch_sizes[micro_batch]]

    def base(self, stage: int) -> StageRunner:
        """Return the runner that owns the states of ``stage``."""
        return next(iter(self._runners[stage].values()))

    @property
    def bases(self) -> dict[int, StageRunner]:
        """Stage -> the runner that owns its states."""
        return {stage: self.base(stage) for stage in self._runners}

    def discard(self) -> None:
        """Drop gradients and activations."""
        for runners in self._runners.values():
            for runner in runners.values():
                runner.discard()

    # -- states -------------------------------------------------------------------------------------------------------

    @cached_property
    def names(self) -> frozenset[str]:
        """The states of the own stages."""
        return frozenset(name for index in self.setup.own_stages for name in self.setup.subgraphs[index].states)

    def owns(self, state: str, stage: int) -> bool:
        """Return whether this worker's replica of ``stage`` is the one that writes ``state``."""
        return stage in self.setup.primary_stages and self.setup.owner(state) == stage

    def load_first(self, hooks: RunHooks) -> dict[str, Array]:
        """Load the states that the run begins with; return the checkpoint's slots of replicas that train alone."""
        replicas: dict[str, Array] = {}
        for index, runner in self.bases.items():
            for names in _groups(runner.subgraph):
                given = hooks.first_states(names) or {}
                runner.load(given)
                runner.initialize([name for name in names if name not in given])
                del given
            slots = hooks.first_optimizer(list(runner.subgraph.states))
            replicas |= {key: value for key, value in slots.items() if is_replica_slot(key)}
            apart = (*replicas, *filter(is_stale_slot, slots), *filter(is_scale_slot, slots))
            runner.load_optimizer({key: value for key, value in slots.items() if key not in apart})  # empty: it starts anew
            self.delayed.load(index, slots)
            self.loss_scale.load(slots)
        self.consistent = True
        return replicas

    def packed(self) -> Mapping[str, Array]:
        """Return copies of all states with their slots, under the names of ``checkpoint.pack``."""
        values: dict[str, Array] = {}
        slots: dict[str, Array] = {}
        for index, runner in self.bases.items():
            values |= runner.states(list(runner.subgraph.states))
            slots |= _slots(runner, (self.delayed, self.loss_scale), index)
        return pack(values, slots)

    def read(self, wanted: Collection[str], instead: Mapping[int, Mapping[str, Array]]) -> Mapping[str, Array]:
        """Return the states ``wanted`` with their slots, packed, uncopied; ``instead`` replaces states of a stage."""
        values: dict[str, Array] = {}
        slots: dict[str, Array] = {}
        for index, runner in self.bases.items():
            values |= runner.states([name for name in runner.subgraph.states if name in wanted], copy=False)
            values |= {name: value for name, value in instead.get(index, {}).items() if name in wanted}
            found = _slots(runner, (self.delayed, self.loss_scale), index, wanted, copy=False)
            slots |= {key: value for key, value in found.items() if key.split("/", 1)[1] in wanted}
        return pack(values, slots)

    def shard(self, device: str) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the states and slots that ``device`` writes into a checkpoint, as far as this worker has them (uncopied)."""
        states: dict[str, Array] = {}
        optimizer: dict[str, Array] = {}
        for index, runner in self.bases.items():
            owned = self.setup.primary(index) == device
            mine = {name for name in runner.subgraph.states if owned and self.setup.owner(name) == index}
            states |= {name: value for name, value in runner.states(copy=False).items() if name in mine}
            slots = _slots(runner, (self.delayed, self.loss_scale), index, mine, copy=False)
            optimizer |= {key: value for key, value in slots.items() if key.split("/", 1)[1] in mine}
        return states, optimizer

    def reproduced(self) -> list[str]:
        """Return the devices whose whole shard this worker has too, bit by bit: primaries of its stages."""
        setup = self.setup
        primaries = [setup.primary(index) for index in range(len(setup.plan.stages))]
        others = sorted({primaries[index] for index in setup.own_stages} - {setup.device})
        needed = {device: {index for index, primary in enumerate(primaries) if primary == device} for device in others}
        return [device for device in others if setup.plan.sync is None and needed[device] <= set(setup.own_stages)]

    def saved(self) -> None:
        """A checkpoint holds the present states."""
        self._saved_committed = self.committed

    # -- steps --------------------------------------------------------------------------------------------------------

    def begin_delayed(self) -> Mapping[int, Mapping[str, Array]]:
        """With a delayed update, load the parameters that the step computes with; return the newest ones, by stage."""
        if not self.delayed.on:
            return {}
        self.consistent = False
        newest = self.delayed.begin(self.bases)
        self.consistent = True
        return newest

    def update(self, step: int, scale: Array | None, sync: Callable[[Array | None], None] | None = None) -> None:
        """Apply the optimizer to the gradients of ``step``; ``scale`` multiplies them. The states are not ``consistent`` until
        the caller has stored that the step is applied, and calls ``settle``.

        ``sync`` does all of it where replicas agree by a strategy.
        """
        self.consistent = False
        self.delayed.end(self.bases)
        if sync is not None:
            sync(scale)
        else:
            current = rates(self.setup.job, step)
            for runner in self.bases.values():
                runner.update(current, scale)
        self.committed += 1
        if sync is None or scale is not None:  # a replica that rests has no gradients
            self.loss_scale.applied()

    def settle(self) -> None:
        """The states are those of a step's boundary again."""
        self.consistent = True

    def restore(self, before: Mapping[int, Mapping[str, Array]], sync: Callable[[], None] | None = None) -> None:
        """Leave the present step out: load ``before``, the states that its forwards have changed.

        ``sync``: what the replica exchanges in the step without an update of its own. The step counts for the other replicas.
        """
        self.consistent = False
        self.discard()
        for index, states in before.items():
            self.base(index).load(states)
        self.delayed.end(self.bases)
        self.loss_scale.skipped()
        if sync is not None:
            sync()
            self.committed += 1

    def roll_back(self, hooks: RunHooks) -> dict[str, Array]:
        """Load the newest checkpoint; return as ``load_first``."""
        self.consistent = False
        self.discard()
        self.committed = self._saved_committed
        self.loss_scale.reset()
        return self.load_first(hooks)


def _groups(piece: SubGraph) -> Iterator[list[str]]:
    """The states of ``piece``, the largest first, in groups of about ``_GROUP_BYTES``."""
    sizes = {name: piece.graph.state[name].spec.nbytes for name in piece.states}
    group: list[str] = []
    nbytes = 0
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if group and nbytes + sizes[name] > _GROUP_BYTES:
            yield group
            group, nbytes = [], 0
        group.append(name)
        nbytes += sizes[name]
    yield group


def _slots(
    runner: StageRunner,
    further: tuple[DelayedUpdate, LossScale],
    stage: int,
    names: Collection[str] | None = None,
    *,
    copy: bool = True,
) -> dict[str, Array]:
    """The slots that belong to the states of ``stage``, as ``<slot>/<parameter>``; of the optimizer those of ``names`` only."""
    delayed, scale = further
    return {**runner.optimizer_states(names, copy=copy), **delayed.slots(stage), **scale.slots(runner.subgraph.states)}
