"""An optimizer becomes a rule book: its own ``step`` is noted, once for each kind of parameter.

Each way through the code is noted twice, with other values of the learning rate and the step. If the two notes differ, a number
got lost on its way, and the error names the line. The optimizer itself is not changed: a copy of it steps stand-ins.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from farflung.errors import CaptureError
from farflung.foreign_code import first_line
from farflung.frontends.optimizers.recorder import Line, UpdateRecorder, line_text
from farflung.frontends.optimizers.traced import is_traced, plain
from farflung.frontends.torch.data_dependence import line_of
from farflung.graph.ir import DTYPES, LocalRef
from farflung.optim import Rule, RuleBook, StateSlot, UpdateProgram
from farflung.optim.program import GRADIENT, PARAMETER, SETTINGS, Key

__all__ = ["Trained", "capture_rules", "setting_of"]

#: Factors of the settings in the two notes of a step: no code's constants are their products.
_HINTS = (1.0123456789, 0.9876543211)
#: Steps after the first that are noted.
_STEPS = 3
#: Faster forms of the same update, whose bits differ; the update is noted in its plain form.
_PLAIN = {"foreach": False, "fused": None, "capturable": False, "differentiable": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A parameter that is trained: its group in the job, the optimizer and the optimizer's group that it belongs to."""

    group: int
    optimizer: torch.optim.Optimizer
    settings: Mapping[str, Any]
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Note:
    """What one step did. ``states``: what the optimizer keeps after it."""

    program: UpdateProgram
    lines: tuple[Line | None, ...]
    states: dict[str, Any]
    slots: tuple[StateSlot, ...]


def capture_rules(trained: Iterable[Trained], settings: Sequence[str] = ("lr",)) -> RuleBook:
    """The rules of the parameters ``trained``; ``settings`` are the values that a schedule sets.

    Raises:
        CaptureError: an optimizer can't become a program; the text names the line of its code.
    """
    ordered = tuple(name for name in SETTINGS if name in settings)
    rules: list[Rule] = []
    uses: dict[Key, int] = {}
    for item in trained:
        key = item.group, str(item.dtype).removeprefix("torch."), item.shape
        if key not in uses:
            rule = _rule(item, ordered)
            if rule not in rules:
                rules.append(rule)
            uses[key] = rules.index(rule)
    return RuleBook(settings=ordered, rules=tuple(rules), uses=tuple(uses.items()))


def setting_of(group: Mapping[str, Any], name: str) -> float:
    """The value of a setting that a schedule can set in an optimizer's group (0.0: it has no such setting)."""
    if name == "momentum" and "momentum" not in group:
        return float(group["betas"][0]) if "betas" in group else 0.0
    return float(group.get(name, 0.0))


def _rule(item: Trained, settings: Sequence[str]) -> Rule:
    first = [_step(item, settings, hint, None) for hint in _HINTS]
    programs = _different(item, first)
    later: list[_Note] = []
    note = first[0]
    for number in range(_STEPS):
        note = _step(item, settings, _HINTS[number % 2], note)
        if note.slots != first[0].slots:
            raise _refused(item, "it has other states after its second step than after its first: make all states in the first")
        later.append(note)
    return Rule(states=first[0].slots, first=programs, later=_different(item, later))


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


def _step(item: Trained, settings: Sequence[str], hint: float, before: _Note | None) -> _Note:
    """Note one step after ``before`` (None: the first one)."""
    count = 2 + len(settings)
    slots = () if before is None else before.slots
    recorder = UpdateRecorder(count + len(slots))
    parameter = torch.nn.Parameter(torch.empty(item.shape, dtype=item.dtype, device="meta"))
    parameter.grad = recorder.input_tensor(torch.empty(item.shape, dtype=item.dtype, device="meta"), GRADIENT)
    recorder.input_tensor(parameter, PARAMETER)
    group = {**item.settings, "params": [parameter]} | {key: value for key, value in _PLAIN.items() if key in item.settings}
    for place, name in enumerate(settings, 2):
        value = setting_of(item.settings, name)
        _set(group, name, recorder.input_number((value or 1e-3) * hint, place))
    optimizer = copy.copy(item.optimizer)
    optimizer.__dict__.pop("step", None)  # a learning-rate scheduler puts one there, which steps the original
    optimizer.param_groups = [group]
    optimizer.state = defaultdict(dict)
    if before is not None:
        optimizer.state[parameter] = {**before.states, **_inputs(recorder, before, count)}
    kept = dict(group)
    geometry = parameter.untyped_storage()._cdata
    try:
        with recorder.recording():
            type(optimizer).step(optimizer)
    except CaptureError as error:
        raise _refused(item, str(error)) from error
    except Exception as error:  # the optimizer is foreign code
        raise _refused(item, _failure(error)) from error
    _check_group(item, kept, group)
    if parameter.untyped_storage()._cdata != geometry:
        raise _refused(item, "it puts another tensor into parameter.data: change the parameter in place, with copy_")
    return _note(item, recorder, dict(optimizer.state[parameter]))


def _set(group: dict[str, Any], name: str, value: Any) -> None:
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


def _note(item: Trained, recorder: UpdateRecorder, states: dict[str, Any]) -> _Note:
    slots: list[StateSlot] = []
    results: list[LocalRef | int | float] = []
    kept: dict[str, Any] = {}
    for name, value in states.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise _refused(item, f"its state has the key {name!r:.60}: name states with plain words")
        slot = _slot(item, name, value)
        kept[name] = value
        if slot is not None:
            slots.append(slot)
            results.append(recorder.result(value))
            kept[name] = recorder.known(value) if isinstance(value, torch.Tensor) else plain(value)
    program = UpdateProgram(steps=tuple(recorder.steps), results=tuple(results), guards=tuple(recorder.guards))
    return _Note(program, tuple(recorder.lines), kept, tuple(slots))


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
        if name != "params" and (changed or (new is not old and new != old)):
            raise _refused(item, f"its step changes the setting {name!r} of a group: keep it in self.state[parameter]")


def _failure(error: Exception) -> str:
    """What the optimizer's code raised, and where."""
    trace = error.__traceback__
    file, number = "", 0
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "farflung" not in name and "/torch/utils/" not in name and "/torch/_" not in name and "/torch/overrides" not in name:
            file, number = name, trace.tb_lineno
        trace = trace.tb_next
    place, text = line_of(file, number) if file else ("its step", "")
    return f"{place}: {text}: {type(error).__name__}: {first_line(error)}"
