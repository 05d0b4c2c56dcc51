"""An optimizer becomes a rule book: its own ``step`` is noted, once for each kind of parameter.

Each way through the code is noted twice, with other values of the learning rate and the step. If the two notes differ, a number
got lost on its way, and the error names the line. The optimizer itself is not changed: a copy of it steps stand-ins.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from farflung.errors import CaptureError
from farflung.foreign_code import first_line
from farflung.frontends.optimizers.notes import Line, Notes, line_text
from farflung.frontends.optimizers.recorder import UpdateRecorder
from farflung.frontends.optimizers.traced_numbers import is_traced, plain
from farflung.frontends.torch.checks.data_dependence import line_of
from farflung.graph.ir import DTYPES, LocalRef
from farflung.optim import Rule, RuleBook, StateSlot, UpdateProgram
from farflung.optim.program import GRADIENT, PARAMETER, SETTINGS, Key

__all__ = [
    "PLAIN",
    "FindMissing",
    "Initial",
    "Trained",
    "capture_rules",
    "initial_states",
    "set_setting",
    "setting_of",
    "step_copy",
]

#: Factors of the settings in the two notes of a step: no code's constants are their products.
_HINTS = (1.0123456789, 0.9876543211)
#: What is noted in place of a setting that is 0.
_USUAL = 1e-3
#: Steps after the first that are noted, and programs that a rule may have.
_STEPS, _MOST_WAYS = 3, 16
#: Faster forms of the same update, whose bits differ; the update is noted in its plain form.
PLAIN = {"foreach": False, "fused": None, "capturable": False, "differentiable": False}


@dataclass(frozen=True, slots=True)
class Initial:
    """A state that exists before the first step. ``dtype``: None: no tensor. ``shape``: None: the parameter's, all ``value``."""

    value: Any
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] | None = ()

    def tensor(self, shape: tuple[int, ...]) -> torch.Tensor:
        """The state of a parameter of ``shape``."""
        return torch.full(shape if self.shape is None else self.shape, self.value, dtype=self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A parameter that is trained: its group in the job, the optimizer and the optimizer's group that it belongs to.

    ``initial``: states that the optimizer made before its first step (``initial_states``). ``parameter``: the one in the
    optimizer's group.
    """

    group: int
    optimizer: torch.optim.Optimizer
    settings: Mapping[str, Any]
    dtype: torch.dtype
    shape: tuple[int, ...]
    initial: tuple[tuple[str, Initial], ...] = ()
    parameter: torch.Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class _Note:
    """What one step did. ``states``: what the optimizer keeps after it."""

    program: UpdateProgram
    lines: tuple[Line | None, ...]
    states: dict[str, Any]
    slots: tuple[StateSlot, ...]


#: What finds a step of a run that no program of a rule fits: the values of its settings, and the states before it, as far as
#: they are numbers or have one element (None: the first step).
FindMissing = Callable[[Rule, Trained], tuple[Sequence[float], Sequence[Any] | None] | None]


def capture_rules(
    trained: Iterable[Trained], settings: Sequence[str] = ("lr",), missing: FindMissing = lambda rule, item: None
) -> RuleBook:
    """The rules of the parameters ``trained``; ``settings`` are the values that a schedule sets.

    ``missing`` is asked until the programs of each rule fit all steps of the run.

    Raises:
        CaptureError: an optimizer can't become a program; the text names the line of its code.
    """
    ordered = tuple(name for name in SETTINGS if name in settings)
    rules: list[Rule] = []
    uses: dict[Key, int] = {}
    finished: dict[tuple[int, Rule], Rule] = {}
    for item in trained:
        key = item.group, str(item.dtype).removeprefix("torch."), item.shape
        if key not in uses:
            noted = _Capture(item, ordered)
            begun = item.group, noted.rule()
            if begun not in finished:  # following a run takes long; parameters of other shapes mostly take the same ways
                finished[begun] = noted.complete(missing)
            rule = finished[begun]
            if rule not in rules:
                rules.append(rule)
            uses[key] = rules.index(rule)
    return RuleBook(settings=ordered, rules=tuple(rules), uses=tuple(uses.items()))


def initial_states(states: Mapping[Any, Any], shape: tuple[int, ...]) -> tuple[tuple[str, Initial], ...] | None:
    """The states of a parameter before its first step (None: these are states after steps)."""
    found: list[tuple[str, Initial]] = []
    for name, value in states.items():
        if isinstance(value, torch.Tensor):
            if value.is_meta or isinstance(value, FakeTensor):
                return None
            whole = tuple(value.shape) == shape and value.numel() > 1
            if (not whole and value.numel() != 1) or not bool((value == value.reshape(-1)[0]).all()):
                return None
            found.append((name, Initial(value.reshape(-1)[0].item(), value.dtype, None if whole else tuple(value.shape))))
        else:
            found.append((name, Initial(value)))
        if name == "step" and found[-1][1].value:
            return None
    return tuple(found)


def setting_of(group: Mapping[str, Any], name: str) -> float:
    """The value of a setting that a schedule can set in an optimizer's group (0.0: it has no such setting)."""
    if name == "momentum" and "momentum" not in group:
        return float(group["betas"][0]) if "betas" in group else 0.0
    return float(group.get(name, 0.0))


class _Capture:
    """The notes of one parameter's update."""

    def __init__(self, item: Trained, settings: Sequence[str]) -> None:
        self._item, self._settings = item, settings
        usual = [setting_of(item.settings, name) or _USUAL for name in settings]
        self._first = [self._noted(usual, hint, None) for hint in _HINTS]
        self._later: list[_Note] = []
        note = self._first[0]
        for number in range(_STEPS):
            note = self._noted(usual, _HINTS[number % 2], note)
            self._later.append(note)

    def _noted(self, values: Sequence[float], hint: float, before: _Note | None) -> _Note:
        note = _step(self._item, dict(zip(self._settings, (value * hint for value in values), strict=True)), before)
        if before is not None and note.slots != before.slots:
            raise _refused(self._item, "a later step has other states than the first step: make all states in the first one")
        return note

    def rule(self) -> Rule:
        """The rule with the programs that are noted."""
        first, later = _different(self._item, self._first), _different(self._item, self._later)
        return Rule(states=self._first[0].slots, first=first, later=later)

    def complete(self, missing: FindMissing) -> Rule:
        """The rule, whose programs fit all steps that ``missing`` looks at."""
        while True:
            rule = self.rule()
            found = missing(rule, self._item)
            if found is None:
                return rule
            if len(rule.first) + len(rule.later) >= _MOST_WAYS:
                raise _refused(self._item, f"it takes more than {_MOST_WAYS} different ways through its code during the run")
            self._extend(*found)

    def _extend(self, values: Sequence[float], states: Sequence[Any] | None) -> None:
        """Note a step that begins with ``states``, twice."""
        before, notes = None, self._first
        if states is not None:
            last, notes = self._later[-1], self._later
            known = dict(zip((slot.name for slot in last.slots), states, strict=True))
            given = {name: item for name, item in known.items() if item is not None}
            before = _Note(last.program, last.lines, {**last.states, **given}, last.slots)
        notes += [self._noted(values, hint, before) for hint in _HINTS]


def _different(item: Trained, notes: Sequence[_Note]) -> tuple[UpdateProgram, ...]:
    """The different ways through the code; the newest first, because later steps take it."""
    found: list[_Note] = []
    for note in notes:
        alike = [seen for seen in found if _ways(seen) == _ways(note)]
        if not alike:
            found.insert(0, note)
        elif alike[0].program != note.program:
            raise _refused(
                item,
                f"{_difference(alike[0], note)}: the learning rate or the step count gets out of sight here; "
                "compute with + - * / **, math and min or max, without float(), int() or counters of the optimizer",
            )
    return tuple(note.program for note in found)


def _ways(note: _Note) -> tuple[bool, ...]:
    return tuple(expected for _, expected in note.program.guards)


def _difference(one: _Note, other: _Note) -> str:
    for first, second, line in zip(one.program.steps, other.program.steps, one.lines, strict=False):
        if first != second:
            return line_text(line)
    return line_text(one.lines[-1] if one.lines else None)


def _refused(item: Trained, why: str) -> CaptureError:
    return CaptureError(f"optimizer {type(item.optimizer).__name__} can't be captured: {why}")


def _step(item: Trained, settings: Mapping[str, float], before: _Note | None) -> _Note:
    """Note one step with ``settings`` after ``before`` (None: the first one)."""
    count = 2 + len(settings)
    slots = () if before is None else before.slots
    recorder = UpdateRecorder(count + len(slots))
    parameter = torch.nn.Parameter(torch.empty(item.shape, dtype=item.dtype, device="meta"))
    parameter.grad = recorder.input_tensor(torch.empty(item.shape, dtype=item.dtype, device="meta"), GRADIENT)
    recorder.input_tensor(parameter, PARAMETER)
    group = {**item.settings, "params": [parameter]} | {key: value for key, value in PLAIN.items() if key in item.settings}
    for place, (name, value) in enumerate(settings.items(), 2):
        set_setting(group, name, recorder.input_number(value, place))
    optimizer = copy.copy(item.optimizer)
    optimizer.__dict__.pop("step", None)  # a learning-rate scheduler puts one there, which steps the original
    optimizer.param_groups = [group]
    optimizer.state = defaultdict(dict)
    if before is not None:
        optimizer.state[parameter] = {**before.states, **_inputs(recorder, before, count)}
    elif item.initial:
        optimizer.state[parameter] = {name: _begun(recorder, parameter, state) for name, state in item.initial}
    kept = dict(group)
    geometry = parameter.untyped_storage()._cdata
    try:
        with recorder.recording():
            type(optimizer).step(optimizer)
    except CaptureError as error:
        raise _refused(item, str(error)) from error
    except Exception as error:  # the optimizer is foreign code
        raise _refused(item, _failure(optimizer, error)) from error
    _check_group(item, kept, group)
    if parameter.untyped_storage()._cdata != geometry:
        raise _refused(item, "it puts another tensor into parameter.data: change the parameter in place, with copy_")
    return _note(item, recorder.notes, optimizer.state[parameter], {slot.name: slot for slot in slots})


def _begun(recorder: UpdateRecorder, parameter: torch.Tensor, state: Initial) -> Any:
    if state.dtype is None:
        return state.value
    if state.shape is None and parameter.numel() > 1:
        return recorder.full_state(parameter, state.value, state.dtype)
    return state.tensor(tuple(parameter.shape))


def set_setting(group: dict[str, Any], name: str, value: Any) -> None:
    """Set what ``setting_of`` gives; a group without this setting stays as it is."""
    if name == "momentum" and "momentum" not in group and "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    elif name in group:
        group[name] = value


def _inputs(recorder: UpdateRecorder, before: _Note, place: int) -> dict[str, Any]:
    """The states after ``before`` as inputs."""
    found: dict[str, Any] = {}
    for index, slot in enumerate(before.slots, place):
        value = before.states[slot.name]
        if slot.number:
            found[slot.name] = recorder.input_number(plain(value), index)
        else:
            found[slot.name] = recorder.input_state(value, index)
    return found


def _note(item: Trained, notes: Notes, states: Mapping[Any, Any], before: Mapping[str, StateSlot]) -> _Note:
    slots: list[StateSlot] = []
    results: list[LocalRef | int | float] = []
    kept: dict[str, Any] = {}
    for name, value in states.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise _refused(item, f"its state has the key {name!r:.60}: name states with plain words")
        slot = _slot(item, name, value)
        if slot is not None and slot.number and name in before and before[name].number:
            slot = before[name]  # an int is traced as a float
        kept[name] = value
        if slot is not None:
            slots.append(slot)
            results.append(notes.result(value))
            kept[name] = notes.known(value) if isinstance(value, torch.Tensor) else plain(value)
    program = UpdateProgram(steps=tuple(notes.steps), results=tuple(results), guards=tuple(notes.guards))
    return _Note(program, tuple(notes.lines), kept, tuple(slots))


def _slot(item: Trained, name: str, value: Any) -> StateSlot | None:
    """How a state is kept (None: a constant of the code)."""
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        if kind not in DTYPES or type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise _refused(item, f"state {name!r} is a {type(value).__name__} of {kind}, which can't be kept")
        shape = tuple(value.shape)
        return StateSlot(name=name, kind=kind, shape=None if shape == item.shape else shape)
    if value is None or isinstance(value, (bool, str)):
        return None
    if isinstance(value, (int, float)):
        return StateSlot(name=name, kind="float" if isinstance(value, float) else "int")
    raise _refused(item, f"state {name!r} is a {type(value).__name__}: keep tensors and numbers, each under a key of its own")


def _check_group(item: Trained, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for name in after:
        old, new = before.get(name), after[name]
        changed = is_traced(new) and not is_traced(old)
        if name != "params" and (changed or not (new is old or new == old)):
            raise _refused(item, f"its step changes the setting {name!r} of a group: keep it in self.state[parameter]")


def step_copy(optimizer: torch.optim.Optimizer) -> None:
    """Let a copy of an optimizer make its own step.

    Raises:
        CaptureError: it fails.
    """
    try:
        type(optimizer).step(optimizer)
    except Exception as error:  # the optimizer is foreign code
        raise CaptureError(f"optimizer {type(optimizer).__name__} can't be captured: {_failure(optimizer, error)}") from error


def _failure(optimizer: torch.optim.Optimizer, error: Exception) -> str:
    """What the optimizer's code raised, and where."""
    trace = error.__traceback__
    file, number = "", 0
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "farflung" not in name and "/torch/utils/" not in name and "/torch/_" not in name and "/torch/overrides" not in name:
            file, number = name, trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, TypeError) and "'closure'" in str(error):
        return "its step needs a closure, which calls the model again; choose an optimizer whose step works without one"
    what = f"{type(error).__name__}: {first_line(error)}"
    if isinstance(error, AttributeError) and error.obj is optimizer:
        what += f"; put {error.name!r} into the group (defaults of __init__), because attributes are not captured"
    if not file:
        return f"its step fails: {what}"
    place, text = line_of(file, number)
    return ": ".join(part for part in (place, text, what) if part)
