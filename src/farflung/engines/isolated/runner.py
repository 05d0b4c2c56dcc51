"""A stage runner whose tensors are in another process. What comes back is checked against the graph before anybody uses it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from farflung.engines.base import Array, EngineSettings, Forward, MicroBatch, gradient_parts
from farflung.engines.encoded_value import EncodedValue, SentValues
from farflung.engines.isolated.arena import Arena, Slot
from farflung.engines.isolated.control import Arrays, Call, Done, Fold, Method
from farflung.engines.isolated.encoded import Encoded, copy_encoded
from farflung.engines.isolated.exchange import Exchange
from farflung.engines.isolated.service import read_use, write_use
from farflung.errors import WireError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import StateKind, TensorSpec, Use, ValueRef
from farflung.optim import WIDE_SLOTS, rules_of, stored_shapes

__all__ = ["IsolatedRunner"]

#: States are passed in messages of about so many bytes.
_CHUNK = 64 << 20
#: Optimizer states that a parameter usually has.
_SLOTS = 2
#: Optimizer states of one parameter at most.
_MOST_SLOTS = 16
#: Element types of gradients.
_GRADIENTS = frozenset({"float64", "float32", "float16", "bfloat16"})


class IsolatedRunner:
    """See ``StageRunner``. Not thread-safe, as any runner."""

    def __init__(self, attempt: Exchange, number: int, subgraph: SubGraph, settings: EngineSettings) -> None:
        self.subgraph = subgraph
        self.attempt, self.number = attempt, number
        graph, own = subgraph.graph, range(subgraph.start, subgraph.stop)
        self._specs = {name: graph.state[name].spec for name in subgraph.states}
        self._sends = {edge.value: edge.spec for edge in subgraph.gives}
        self._outputs = {name: graph.spec(value) for name, value in graph.outputs if graph.position[value.op] in own}
        self._returns = {edge.value: _returned(subgraph, edge.value, edge.spec) for edge in subgraph.sends_gradients}
        #: Element types that autocast may give a value instead of its own.
        self._also = frozenset({"bf16": {"bfloat16"}, "fp16": {"float16"}}.get(settings.precision, ()))
        self._optimizer, self._offloads = settings.optimizer, settings.offload is not None
        self._codings = frozenset((coding.value, coding.gradient) for coding in settings.codings)
        self._budget = settings.budget
        self._ready: Callable[[int], None] | None = None

    # -- states -------------------------------------------------------------------------------------------------------

    def initialize(self, names: Sequence[str]) -> None:
        """See ``StageRunner``."""
        self._call("initialize", names=tuple(names))

    def load(self, states: Mapping[str, Array]) -> None:
        """See ``StageRunner``."""
        for part in _chunks(states):
            with self.attempt.message() as arena:
                self._send("load", values={name: (arena.write(array),) for name, array in part.items()})
        self.attempt.release()

    def states(self, names: Collection[str] | None = None, *, copy: bool = True) -> Mapping[str, Array]:
        """Copies of states, always."""
        del copy
        graph = self.subgraph.graph
        kept = [name for name in self._specs if graph.state[name].persistent and graph.state[name].kind is not StateKind.CONSTANT]
        wanted = kept if names is None else [name for name in self._specs if name in names]
        found: dict[str, Array] = {}
        for part in _groups(wanted, {name: spec.nbytes for name, spec in self._specs.items()}):
            found |= self._states_of(self._call("states", names=tuple(part)).values)
        return found

    def exposed(self, names: Collection[str]) -> Mapping[str, Array]:
        """None: the states lie in another process."""
        del names
        return {}

    def optimizer_states(self, names: Collection[str] | None = None, *, copy: bool = True) -> Mapping[str, Array]:
        """Copies, always; of states on a disk in several messages."""
        del copy
        groups: Iterable[Collection[str] | None] = [names]
        if self._offloads:
            wanted = [name for name in self._specs if names is None or name in names]
            groups = _groups(wanted, {name: _SLOTS * spec.nbytes for name, spec in self._specs.items()})
        found: dict[str, Array] = {}
        for group in groups:
            made = self._slots(self._call("optimizer_states", names=None if group is None else tuple(group)).values)
            for key, array in made.items():
                slot, _, name = key.partition("/")
                if name not in self._specs or array.shape not in self._slot_shapes(slot, name):
                    raise self._strange(f"optimizer state {key!r:.60}")
            if len(made) > _MOST_SLOTS * len(self._specs):
                raise self._strange(f"{len(made)} optimizer states of {len(self._specs)} states")
            found |= self._copied(made)
        return found

    def _slot_shapes(self, slot: str, name: str) -> tuple[tuple[int, ...], ...]:
        """The shapes that the optimizer state ``slot`` of the parameter ``name`` may have."""
        rules, declared = rules_of(self._optimizer), self._specs[name]
        if rules is None or (self._optimizer.update != "plain" and slot in WIDE_SLOTS):
            return (), declared.shape
        rule = rules.rule_of(self._optimizer, name, declared)
        shapes = {} if rule is None else stored_shapes(self._optimizer.state, rule.states, declared.shape)
        return (shapes[slot],) if slot in shapes else ()

    def load_optimizer(self, states: Mapping[str, Array], *, more: bool = False) -> None:
        """See ``StageRunner``."""
        parts = list(_by_parameter(states)) if self._offloads else [states]
        for number, part in enumerate(parts or [states]):
            with self.attempt.message() as arena:
                values = {key: (arena.write(array),) for key, array in part.items()}
                self._send("load_optimizer", values=values, more=more or number > 0)

    # -- a micro-batch ------------------------------------------------------------------------------------------------

    def forward(self, key: MicroBatch, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> Forward:
        """See ``StageRunner``."""
        with self.attempt.message() as arena:
            self.attempt.post(self.forward_call(arena, key, values, data))
            return self.forwarded()

    def forward_call(self, arena: Arena, key: MicroBatch, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> Call:
        """The message of a forward, for ``post``; ``forwarded`` takes the answer."""
        given: Arrays = {str(value): (arena.write(array),) for value, array in values.items()}
        read: Arrays = {name: (arena.write(array),) for name, array in data.items() if name in self.subgraph.placeholders}
        return Call(runner=self.number, method="forward", key=key, values=given, data=read)

    def forwarded(self) -> Forward:
        """Wait for the answer to a forward."""
        done = self.attempt.answer("the forward")
        made = self._slots(done.outputs)
        self._check(made, self._outputs)
        return Forward(values=self._sent(done, self._sends, gradient=False), outputs=self._copied(made))

    def backward(self, key: MicroBatch, gradients: Mapping[ValueRef, Sequence[Array]], weight: float) -> SentValues:
        """See ``StageRunner``."""
        with self.attempt.message() as arena:
            self.attempt.post(self.backward_call(arena, key, gradients, weight))
            return self.went_back()

    def backward_call(
        self,
        arena: Arena,
        key: MicroBatch,
        gradients: Mapping[ValueRef, Sequence[Array]],
        weight: float,
        folds: tuple[Fold, ...] = (),
    ) -> Call:
        """The message of a backward, for ``post``; ``went_back`` takes the answer. ``folds``: what ranks add in it."""
        given: Arrays = {str(v): tuple(arena.write(array) for array in arrays) for v, arrays in gradients.items()}
        return Call(runner=self.number, method="backward", key=key, values=given, weight=weight, folds=folds)

    def went_back(self) -> SentValues:
        """Wait for the answer to a backward."""
        return self._sent(self.attempt.answer("the backward", self._ready), self._returns, gradient=True)

    def _sent(self, done: Done, declared: Mapping[ValueRef, TensorSpec], *, gradient: bool) -> SentValues:
        """The values that ``done`` brings: as arrays, or encoded where a coding allows it."""
        found, encoded = self._slots(done.values), done.encoded
        self._check(found, {str(value): spec for value, spec in declared.items() if str(value) not in encoded})
        specs = {str(value): spec for value, spec in declared.items() if (value, gradient) in self._codings}
        if not encoded.keys() <= specs.keys():
            raise self._strange("a payload that nobody asked for")
        for name, one in encoded.items():
            spec = specs[name]
            if one.shape != spec.shape or one.dtype not in {spec.dtype, *self._also} or one.nbytes > spec.nbytes:
                raise self._strange(f"a payload for {name!r:.60} that is another value's or too large")
        arrays = {ValueRef.parse(name): array for name, array in self._copied(found).items()}
        return {**arrays, **{ValueRef.parse(name): self._payload(one) for name, one in encoded.items()}}

    def _payload(self, one: Encoded) -> EncodedValue:
        try:
            return copy_encoded(one, lambda slot: self.attempt.copy(slot, self._budget))
        except WireError:
            self.attempt.end()
            raise

    def backward_weights(self, key: MicroBatch) -> None:
        """See ``StageRunner``."""
        with self.attempt.message():
            call = Call(runner=self.number, method="backward_weights", key=key)
            self.attempt.ask(call, "the backward", self._ready)

    def watch(self, groups: Sequence[Collection[str]], ready: Callable[[int], None]) -> None:
        """See ``StageRunner``; ``ready`` is called by ``backward``, on the thread that calls it."""
        self._ready = ready
        self._call("watch", groups=tuple(tuple(names) for names in groups))

    # -- gradients ----------------------------------------------------------------------------------------------------

    def close_part(self, *, last: bool = False) -> None:
        """See ``StageRunner``."""
        self._call("close_part", last=last)

    def take_gradients(self) -> Mapping[Use, Array]:
        """See ``StageRunner``."""
        return self._uses_of(self._call("take_gradients"))

    def put_gradients(self, gradients: Mapping[Use, Array]) -> None:
        """See ``StageRunner``."""
        with self.attempt.message() as arena:
            self._send("put_gradients", values={write_use(use): (arena.write(array),) for use, array in gradients.items()})

    def use_gradients(self) -> Mapping[Use, Array]:
        """See ``StageRunner``."""
        return self._uses_of(self._call("use_gradients"))

    def finish_gradients(self, uses: Mapping[Use, Array]) -> None:
        """See ``StageRunner``."""
        with self.attempt.message() as arena:
            self._send("finish_gradients", values={write_use(use): (arena.write(array),) for use, array in uses.items()})

    def gradients(self) -> Mapping[str, Array]:
        """See ``StageRunner``."""
        return self._states_of(self._call("gradients").values)

    def gradient_views(self, names: Collection[str]) -> Mapping[str, Array]:
        """Copies, always."""
        return self._states_of(self._call("gradient_views", names=tuple(names)).values)

    def set_gradients(self, gradients: Mapping[str, Array]) -> None:
        """See ``StageRunner``."""
        with self.attempt.message() as arena:
            self._send("set_gradients", values={name: (arena.write(array),) for name, array in gradients.items()})

    def gradient_norms(self) -> Mapping[str, float]:
        """See ``StageRunner``."""
        found = self._call("gradient_norms").numbers
        if not found.keys() <= self._specs.keys():
            raise self._strange("a norm of a parameter that it does not have")
        return found

    def spoilt_gradients(self) -> tuple[str, ...]:
        """See ``StageRunner``."""
        found = self._call("spoilt_gradients").names
        return tuple(name for name in found if name in self._specs)

    def update(self, rates: Sequence[float], scale: Array | None, names: Collection[str] | None = None) -> None:
        """See ``StageRunner``."""
        with self.attempt.message() as arena:
            factor = None if scale is None else arena.write(scale)
            chosen = None if names is None else tuple(names)
            self._send("update", rates=tuple(float(rate) for rate in rates), scale=factor, names=chosen)

    def discard(self) -> None:
        """See ``StageRunner``."""
        self._call("discard")

    # -- messages -----------------------------------------------------------------------------------------------------

    def _call(self, method: Method, **fields: object) -> Done:
        with self.attempt.message():
            return self._send(method, **fields)

    def _send(self, method: Method, **fields: object) -> Done:
        """Send a call whose arrays are written already."""
        call = Call(runner=self.number, method=method, **fields)  # type: ignore[arg-type]
        return self.attempt.ask(call, f"the {method.replace('_', ' ')}")

    def _slots(self, arrays: Arrays) -> dict[str, Slot]:
        """Where the arrays lie. Their names, shapes and element types are checked before they are copied."""
        for name, slots in arrays.items():
            if len(slots) != 1:
                raise self._strange(f"{name!r:.60} with {len(slots)} arrays")
        return {name: slots[0] for name, slots in arrays.items()}

    def _copied(self, slots: Mapping[str, Slot]) -> dict[str, Array]:
        try:
            return {name: self.attempt.copy(slot, self._budget) for name, slot in slots.items()}
        except WireError:
            self.attempt.end()
            raise

    def _states_of(self, arrays: Arrays) -> dict[str, Array]:
        found = self._slots(arrays)
        if not found.keys() <= self._specs.keys():
            raise self._strange("a state that the stage does not have")
        self._check(found, {name: self._specs[name] for name in found})
        return self._copied(found)

    def _uses_of(self, done: Done) -> dict[Use, Array]:
        found = self._slots(done.values)
        for name, array in found.items():
            state = read_use(name).state
            if state not in self._specs or array.shape != self._specs[state].shape or array.dtype not in _GRADIENTS:
                raise self._strange(f"a gradient of {state!r}"[:80])
        return {read_use(name): array for name, array in self._copied(found).items()}

    def _check(self, found: Mapping[str, Slot], declared: Mapping[str, TensorSpec]) -> None:
        """Check that ``found`` has the names, shapes and element types of ``declared``."""
        for name, spec in declared.items():
            array = found.get(name)
            if array is None or array.shape != spec.shape or array.dtype not in {spec.dtype, *self._also}:
                shown = "nothing" if array is None else f"{array.dtype:.20}{list(array.shape)}"[:200]
                raise self._strange(f"{shown} for {name!r:.60}, which is declared {spec.dtype}{list(spec.shape)}")
        if len(found) != len(declared):
            raise self._strange("values that nobody asked for")

    def _strange(self, what: str) -> WireError:
        self.attempt.end()
        return WireError(f"stage {self.subgraph.stage}: the process that computes answered with {what}; it was ended")


def _returned(subgraph: SubGraph, value: ValueRef, spec: TensorSpec) -> TensorSpec:
    parts = gradient_parts(subgraph, value)
    return spec if parts == 1 else TensorSpec(dtype=spec.dtype, shape=(parts, *spec.shape))


def _groups(names: Sequence[str], sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """``names`` in groups of about ``_CHUNK`` bytes."""
    group: list[str] = []
    total = 0
    for name in names:
        if group and total + sizes[name] > _CHUNK:
            yield group
            group, total = [], 0
        group.append(name)
        total += sizes[name]
    if group:
        yield group


def _chunks(states: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    for names in _groups(list(states), {name: array.nbytes for name, array in states.items()}):
        yield {name: states[name] for name in names}


def _by_parameter(states: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Optimizer states in parts of about ``_CHUNK`` bytes; those of one parameter stay together."""
    keys: dict[str, list[str]] = {}
    for key in states:
        keys.setdefault(key.partition("/")[2], []).append(key)
    sizes = {name: sum(states[key].nbytes for key in own) for name, own in keys.items()}
    for names in _groups(list(keys), sizes):
        yield {key: states[key] for name in names for key in keys[name]}
