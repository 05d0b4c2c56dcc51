"""A rule book as JSON. ``read_rules`` trusts nothing: a document meets every rule or is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from farflung.errors import GraphError, InputError
from farflung.graph.document import Fields, parse, read_step, write_step
from farflung.graph.ir import DTYPES, Arg, InitStep, LocalRef, StateRef, ValueRef, iter_refs
from farflung.graph.opset import info
from farflung.graph.signatures import Signature, check_call, signature
from farflung.graph.validate import Limits, check_arguments
from farflung.job.optimizer_names import BUILT_IN
from farflung.job.rates import rates, scheduled
from farflung.job.spec import JobSpec, OptimizerSpec
from farflung.optim.numbers import COMPARISONS, ITEM, NUMBERS, PREFIX
from farflung.optim.program import SETTINGS, Key, Rule, RuleBook, StateSlot, UpdateProgram

__all__ = ["MOST_BYTES", "check_optimizer", "check_types", "needs_rules", "read_rules", "rules_of", "write_rules"]

_FORMAT, _VERSION = "farflung-optimizer", 1
MOST_BYTES = 1 << 20
_LIMITS = Limits(document_bytes=MOST_BYTES, arguments=256, text_length=256, depth=4)
_MOST_RULES, _MOST_USES, _MOST_PROGRAMS, _MOST_STEPS, _MOST_STATES, _MOST_RANK = 1024, 65_536, 16, 1024, 32, 16
_SLOT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
#: An operator whose result is what memory held before, and operators whose results nobody can bound.
_REFUSED = re.compile(r"aten\.(empty|new_empty|empty_like)\b")


def write_rules(book: RuleBook) -> str:
    """The canonical document of ``book``."""
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "settings": list(book.settings),
        "rules": [
            {
                "states": [[slot.name, slot.kind, None if slot.shape is None else list(slot.shape)] for slot in rule.states],
                "first": [_write_program(program) for program in rule.first],
                "later": [_write_program(program) for program in rule.later],
            }
            for rule in book.rules
        ],
        "uses": [[group, dtype, list(shape), rule] for (group, dtype, shape), rule in book.uses],
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _write_program(program: UpdateProgram) -> dict[str, Any]:
    results = [{"l": result.index} if isinstance(result, LocalRef) else result for result in program.results]
    return {
        "steps": [write_step(step) for step in program.steps],
        "results": results,
        "guards": [[place, expected] for place, expected in program.guards],
    }


def needs_rules(spec: OptimizerSpec) -> bool:
    """Whether no engine has the optimizer of ``spec`` built in."""
    groups = any(group.name is not None or group.settings for group in spec.groups)
    return spec.name not in BUILT_IN or groups or bool(spec.settings) or spec.state != "float32"


def check_optimizer(job: JobSpec) -> None:
    """Check the rules of a submitted job.

    Raises:
        InputError: the job lacks rules or values that its optimizer needs, or they do not fit each other.
        GraphError: its rules break a rule of the format.
    """
    rules, settings = rules_of(job.optimizer), scheduled(job)
    if rules is None and (needs_rules(job.optimizer) or len(settings) > 1):
        raise InputError(f"optimizer.name = {job.optimizer.name!r}: the job lacks its rules; submit it with farflung submit")
    if rules is not None and rules.settings != settings:
        raise InputError(f"the optimizer's rules take {', '.join(rules.settings)}, the job's schedule sets {', '.join(settings)}")
    rates(job, 0)


@lru_cache(maxsize=16)
def rules_of(spec: OptimizerSpec) -> RuleBook | None:
    """The rule book that a job carries (None: its optimizer is one of the built-in ones).

    Raises:
        GraphError: it breaks a rule.
    """
    return read_rules(spec.rules) if spec.rules else None


def read_rules(text: str) -> RuleBook:
    """Parse and check a document that nobody vouches for.

    Raises:
        GraphError: corrupt, too large, or against a rule; the text names the rule and the place.
    """
    if len(text) > MOST_BYTES:
        raise GraphError(f"the optimizer's rules have {len(text)} bytes: at most {MOST_BYTES} are read")
    fields = Fields(parse(text), "optimizer rules", {})
    if fields.take("format", str) != _FORMAT or fields.take("version", int) != _VERSION:
        raise GraphError(f"optimizer rules: not a document of format {_FORMAT!r}, version {_VERSION}: use equal versions")
    settings = tuple(fields.take("settings", list))
    if settings != tuple(name for name in SETTINGS if name in settings) or "lr" not in settings:
        raise GraphError(f"optimizer rules: settings must be some of {', '.join(SETTINGS)} in this order, lr among them")
    raw = fields.take("rules", list)
    _bounded("rules", raw, _MOST_RULES)
    book = RuleBook(
        settings=settings, rules=tuple(_read_rule(item, f"optimizer rule {i}") for i, item in enumerate(raw)), uses=()
    )
    for index, rule in enumerate(book.rules):
        for number, (program, later) in enumerate(rule.programs()):
            where = f"optimizer rule {index}, program {number}"
            _check_program(program, [*_inputs(book, rule, later=later)], rule, where)
    uses = fields.take("uses", list)
    _bounded("uses", uses, _MOST_USES)
    fields.end()
    found = tuple(_read_use(item, len(raw)) for item in uses)
    if len(dict(found)) != len(found):
        raise GraphError("optimizer rules: two rules stand for one group, element type and shape")
    return RuleBook(settings=settings, rules=book.rules, uses=found)


def _bounded(what: str, items: Sequence[Any], most: int, least: int = 0) -> None:
    if not least <= len(items) <= most:
        raise GraphError(f"optimizer rules: {len(items)} {what}, {least} to {most} are allowed")


def _whole(value: Any, what: str, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise GraphError(f"optimizer rules: {what} must be a whole number of at most {most}, not {value!r:.60}")
    return value


def _shape(raw: Any) -> tuple[int, ...]:
    if not isinstance(raw, list):
        raise GraphError("optimizer rules: a shape must be a list")
    _bounded("dimensions", raw, _MOST_RANK)
    return tuple(_whole(size, "a size", _LIMITS.tensor_bytes) for size in raw)


def _read_use(raw: Any, rules: int) -> tuple[Key, int]:
    if not isinstance(raw, list) or len(raw) != 4 or not isinstance(raw[1], str) or raw[1] not in DTYPES:
        raise GraphError("optimizer rules: a use must be [group, element type, shape, rule]")
    return (_whole(raw[0], "a group", 1 << 20), raw[1], _shape(raw[2])), _whole(raw[3], "a rule", rules - 1)


def _read_rule(raw: Any, where: str) -> Rule:
    fields = Fields(raw, where, {})
    states = fields.take("states", list)
    _bounded("states", states, _MOST_STATES)
    slots = tuple(_read_slot(item, where) for item in states)
    if len({slot.name for slot in slots}) != len(slots):
        raise GraphError(f"{where}: a state's name stands twice")
    first, later = (fields.take(key, list) for key in ("first", "later"))
    for programs in (first, later):
        _bounded("programs", programs, _MOST_PROGRAMS, 1)
    fields.end()
    return Rule(
        states=slots,
        first=tuple(_read_program(item, f"{where}, first {i}") for i, item in enumerate(first)),
        later=tuple(_read_program(item, f"{where}, later {i}") for i, item in enumerate(later)),
    )


def _read_slot(raw: Any, where: str) -> StateSlot:
    if not isinstance(raw, list) or len(raw) != 3 or not isinstance(raw[0], str) or not _SLOT.fullmatch(raw[0]):
        raise GraphError(f"{where}: a state must be [name, kind, shape], its name a plain word")
    if raw[1] not in (*DTYPES, "int", "float"):
        raise GraphError(f"{where}: state {raw[0]!r} has the unknown kind {raw[1]!r:.60}")
    return StateSlot(name=raw[0], kind=raw[1], shape=None if raw[2] is None else _shape(raw[2]))


def _read_program(raw: Any, where: str) -> UpdateProgram:
    fields = Fields(raw, where, {})
    steps, results, guards = (fields.take(key, list) for key in ("steps", "results", "guards"))
    fields.end()
    _bounded("steps", steps, _MOST_STEPS)
    _bounded("guards", guards, _MOST_STEPS)
    if any(not isinstance(guard, list) or len(guard) != 2 or type(guard[1]) is not bool for guard in guards):
        raise GraphError(f"{where}: a guard must be [place, expected]")
    return UpdateProgram(
        steps=tuple(read_step(item, f"{where}, step {i}", _LIMITS) for i, item in enumerate(steps)),
        results=tuple(_read_result(item, where) for item in results),
        guards=tuple((_whole(place, "a place", _MOST_STEPS * 2), expected) for place, expected in guards),
    )


def _read_result(raw: Any, where: str) -> LocalRef | int | float:
    if isinstance(raw, dict) and raw.keys() == {"l"}:
        return LocalRef(_whole(raw["l"], "a place", _MOST_STEPS * 2))
    if type(raw) not in (int, float) or abs(raw) >= 1 << 63 or not math.isfinite(raw):
        raise GraphError(f"{where}: a result must be a place or a number")
    return raw  # type: ignore[no-any-return]


def _inputs(book: RuleBook, rule: Rule, *, later: bool) -> list[str]:
    """The kinds of the input places: ``tensor``, ``number``."""
    states = ["number" if slot.number else "tensor" for slot in rule.states]
    return ["tensor", "tensor", *("number" for _ in book.settings), *(states if later else [])]


def _check_program(program: UpdateProgram, kinds: list[str], rule: Rule, where: str) -> None:
    """Check the calls; ``kinds`` has the kinds of the inputs and gets those of the results."""
    for number, step in enumerate(program.steps):
        here = f"{where}, step {number} ({step.target[:60]})"
        for ref in iter_refs((step.args, tuple(arg for _, arg in step.kwargs))):
            if isinstance(ref, (ValueRef, StateRef)) or not 0 <= ref.index < len(kinds):
                raise GraphError(f"{here}: reads a place that no earlier step fills")
        check_arguments((step.args, step.kwargs), here, _LIMITS)
        if step.rng is not None or step.like is not None:
            raise GraphError(f"{here}: an update draws no random numbers")
        kinds.append(_check_step(step, kinds, here))
    if len(program.results) != len(rule.states):
        raise GraphError(f"{where}: {len(program.results)} results for {len(rule.states)} states")
    for slot, result in zip(rule.states, program.results, strict=True):
        kind = kinds[result.index] if isinstance(result, LocalRef) and result.index < len(kinds) else "number"
        if (isinstance(result, LocalRef) and result.index >= len(kinds)) or (kind in ("number", "bool")) != slot.number:
            raise GraphError(f"{where}: the result of state {slot.name!r} is not the {slot.kind} that it must be")
    for place, _ in program.guards:
        if place >= len(kinds) or kinds[place] != "bool":
            raise GraphError(f"{where}: place {place} is no comparison that a guard can have")


def _check_step(step: InitStep, kinds: Sequence[str], here: str) -> str:
    """Check a call's target and the types of its arguments; return the kind of its result."""
    if step.target.startswith(PREFIX):
        return _check_number(step, kinds, here)
    known = info(step.target)
    if step.target.startswith("farflung.") or known.random or _REFUSED.match(step.target):
        raise GraphError(f"{here}: an update can't have this operator")
    first = step.args[0] if step.args else None
    if known.in_place and not (isinstance(first, LocalRef) and kinds[first.index] == "tensor"):
        raise GraphError(f"{here}: the first argument of an in-place operator must be a tensor")
    check_types(step, signature(step.target), {place for place, kind in enumerate(kinds) if kind != "tensor"}, here)
    if not 0 <= step.output < _LIMITS.outputs:
        raise GraphError(f"{here}: output {step.output} is below 0 or above {_LIMITS.outputs - 1}")
    return "tensor"


def check_types(step: InitStep, declared: Signature, numbers: Collection[int], where: str) -> None:
    """Check the types of a call's arguments; ``numbers`` are the places that hold Python numbers.

    Such a number, which is known only at run time, stands as 1.0: it passes where a number may stand, and never as a size.

    Raises:
        GraphError: the text names the argument.
    """
    args = tuple(_stand_in(arg, numbers) for arg in step.args)
    check_call(declared, args, [(name, _stand_in(arg, numbers)) for name, arg in step.kwargs], where)


def _stand_in(arg: Arg, numbers: Collection[int]) -> Arg:
    if isinstance(arg, tuple):
        return tuple(_stand_in(item, numbers) for item in arg)
    return 1.0 if isinstance(arg, LocalRef) and arg.index in numbers else arg


def _check_number(step: InitStep, kinds: Sequence[str], here: str) -> str:
    name = step.target.removeprefix(PREFIX)
    if step.target != ITEM and name not in NUMBERS:
        raise GraphError(f"{here}: no such operator on numbers, known are item, {', '.join(NUMBERS)}")
    count, wanted = (1, "tensor") if step.target == ITEM else (NUMBERS[name][0], "number")
    if len(step.args) != count or step.kwargs or step.output:
        raise GraphError(f"{here}: takes {count} argument(s) and nothing else")
    for arg in step.args:
        kind = kinds[arg.index] if isinstance(arg, LocalRef) else "number" if type(arg) in (int, float) else "other"
        if kind != wanted:
            raise GraphError(f"{here}: takes a {wanted}")
    return "bool" if name in COMPARISONS else "number"
