"""What the runners of all engines share: the calls that the states of a stage, or its optimizer, answer alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from farflung.engines.base import Array, EngineSettings
from farflung.engines.offloaded_states import OffloadedStates
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Use
from farflung.job.groups import is_frozen

__all__ = ["StatefulRunner", "trained_states"]


def trained_states(subgraph: SubGraph, settings: EngineSettings) -> frozenset[str]:
    """The parameters that the stage trains: none without ``training``, and none of a frozen group."""
    names = subgraph.states if settings.training else ()
    return frozenset(n for n in names if n in subgraph.graph.trained and not is_frozen(settings.optimizer, n))


class _States(Protocol):
    """The states of a stage, and the gradients that accumulate for them."""

    trained: frozenset[str]

    def initialize(self, names: Sequence[str], seed: int) -> None: ...

    def load(self, states: Mapping[str, Array]) -> None: ...

    def export(self, names: Collection[str] | None, *, copy: bool) -> dict[str, Array]: ...

    def close_part(self, *, last: bool = False) -> None: ...

    def take(self) -> dict[Use, Array]: ...

    def put(self, gradients: Mapping[Use, Array]) -> None: ...

    def use_gradients(self) -> dict[Use, Array]: ...

    def finish(self, remote: Mapping[Use, Array]) -> None: ...

    def set_gradients(self, gradients: Mapping[str, Array]) -> None: ...


class _Optimizer(Protocol):
    """The optimizer of a stage's parameters."""

    def export(self, *, copy: bool = True) -> dict[str, Array]: ...

    def load(self, states: Mapping[str, Array]) -> None: ...


StatesT = TypeVar("StatesT", bound=_States)
OptimizerT = TypeVar("OptimizerT", bound=_Optimizer)


class StatefulRunner(Generic[StatesT, OptimizerT]):
    """The part of a ``StageRunner`` that is the same for all engines. See there for what each call does.

    An engine's runner adds forward, backward, the reading of finished gradients, and the update.
    """

    def __init__(self, subgraph: SubGraph, settings: EngineSettings, state: StatesT) -> None:
        self.subgraph = subgraph
        self.state = state
        self._settings = settings
        self._optimizer: OptimizerT | None = None
        self._watch: list[tuple[frozenset[str], int]] = []
        self._ready: Callable[[int], None] | None = None

    def make_optimizer(self, names: Sequence[str]) -> OptimizerT:
        """Return a new optimizer of the parameters ``names``."""
        raise NotImplementedError

    def initialize(self, names: Sequence[str]) -> None:
        """Replay the recorded initializers of the states ``names`` under the settings' seed."""
        self.state.initialize(names, self._settings.seed)

    def load(self, states: Mapping[str, Array]) -> None:
        """Set states to given values.

        Raises:
            GraphError: a state is not in this stage, or its shape or element type is another.
        """
        self.state.load(states)

    def states(self, names: Collection[str] | None = None, *, copy: bool = True) -> Mapping[str, Array]:
        """The states ``names``, or all parameters and persistent buffers."""
        return self.state.export(names, copy=copy)

    def close_part(self, *, last: bool = False) -> None:
        """End a part of the step's sum."""
        self.state.close_part(last=last)

    def take_gradients(self) -> Mapping[Use, Array]:
        """The accumulated gradients by use; they are gone from here."""
        return self.state.take()

    def put_gradients(self, gradients: Mapping[Use, Array]) -> None:
        """Set the accumulated gradients of uses.

        Raises:
            GraphError: a use is not of this stage, or its shape or element type is another.
        """
        self.state.put(gradients)

    def use_gradients(self) -> Mapping[Use, Array]:
        """Accumulated gradients of the uses here of parameters that other stages use too."""
        return self.state.use_gradients()

    def finish_gradients(self, uses: Mapping[Use, Array]) -> None:
        """Add the uses of each tied parameter, the last use first."""
        self.state.finish(uses)

    def set_gradients(self, gradients: Mapping[str, Array]) -> None:
        """Set finished gradients.

        Raises:
            GraphError: a parameter is not trained here, or a gradient has another shape or element type.
        """
        self.state.set_gradients(gradients)

    def watch(self, groups: Sequence[Collection[str]], ready: Callable[[int], None]) -> None:
        """Report complete gradients of the next backward."""
        self._watch = [(frozenset(names), index) for index, names in enumerate(groups)]
        self._ready = ready

    def optimizer(self) -> OptimizerT:
        """The optimizer, made at the first call."""
        if self._optimizer is None:
            self._optimizer = self.make_optimizer([n for n in self.subgraph.states if n in self.state.trained])
        return self._optimizer

    def optimizer_states(self, names: Collection[str] | None = None, *, copy: bool = True) -> Mapping[str, Array]:
        """Optimizer state as ``<slot>/<parameter>``, of all parameters or of ``names``."""
        optimizer = self.optimizer()
        if isinstance(optimizer, OffloadedStates):
            return optimizer.export(names)
        found = optimizer.export(copy=copy)
        return found if names is None else {key: array for key, array in found.items() if key.partition("/")[2] in names}

    def load_optimizer(self, states: Mapping[str, Array], *, more: bool = False) -> None:
        """Set what ``optimizer_states`` gave; see ``StageRunner``.

        Raises:
            CheckpointError: an entry's parameter or shape does not fit this stage.
        """
        optimizer = self.optimizer()
        if isinstance(optimizer, OffloadedStates):
            optimizer.load(states, more=more)
        else:
            optimizer.load({**optimizer.export(copy=False), **states} if more else states)
