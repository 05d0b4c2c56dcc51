"""Checks the arguments of each operator against the types that the operator declares, without a tensor library.

PyTorch trusts some arguments: an integer in the place of an element type crashes the process. A type is written as in PyTorch's
schemas. ``Tensor``, ``int``, ``float``, ``bool``, ``str``, ``Scalar`` (a number) and ``ScalarType`` (an element type) can end in
``?`` (``None`` is allowed), in ``[]`` (a list) or in ``[2]`` (a list, or one value for all of its items). The engine chooses
devices, layouts and generators, so a graph holds ``None`` there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from farflung.errors import GraphError
from farflung.graph.nodes import Arg, DTypeArg, LocalRef, StateRef, ValueRef
from farflung.graph.operator_signatures import SIGNATURES
from farflung.graph.opset import OpClass, info

__all__ = ["Parameter", "Signature", "check_call", "read_signature", "signature"]

#: The operators of farflung; the arguments of ``farflung.gradient`` have rules of their own (``graph.gradient``).
_PSEUDO = {
    "farflung.input": "",
    "farflung.variable": "Tensor value",
    "farflung.batch_norm": "Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor var, float momentum, float eps",
    "farflung.cached_attention": "Tensor query, Tensor key, Tensor value, Tensor cache, Tensor positions, Tensor slots, "
    "float scale, int window",
    "farflung.ctc_loss": "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
    "int reduction, bool zero_infinity",
    "farflung.grouped_linear": "Tensor rows, Tensor[] weights, Tensor sizes",
    "farflung.grouped_mm": "Tensor rows, Tensor weight, Tensor offsets",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An argument that an operator declares. ``size``: None: one value; 0: a list; else one value can stand for a list."""

    name: str
    kind: str
    optional: bool = False
    size: int | None = None
    items_optional: bool = False
    required: bool = True
    keyword_only: bool = False

    def __str__(self) -> str:
        items = "?" if self.items_optional else ""
        many = "" if self.size is None else f"{items}[{self.size or ''}]"
        return f"{self.kind}{many}{'?' if self.optional else ''}"


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of an operator in their order. ``numbers``: a number can stand for a tensor."""

    parameters: tuple[Parameter, ...]
    numbers: bool = False


def _is_tensor(arg: Arg) -> bool:
    return isinstance(arg, (ValueRef, StateRef, LocalRef))


def _is_number(arg: Arg) -> bool:
    return isinstance(arg, (int, float))  # a bool is an integer


def _is_integer(arg: Arg) -> bool:
    return isinstance(arg, int) and not isinstance(arg, bool)


def _never(arg: Arg) -> bool:
    return arg is None


_KINDS: Mapping[str, Callable[[Arg], bool]] = {
    "Tensor": _is_tensor,
    "int": _is_integer,
    "float": lambda arg: _is_number(arg) and not isinstance(arg, bool),
    "bool": lambda arg: isinstance(arg, bool),
    "str": lambda arg: isinstance(arg, str),
    "Scalar": _is_number,
    "ScalarType": lambda arg: isinstance(arg, DTypeArg),
    "MemoryFormat": lambda arg: isinstance(arg, str),
    "Device": _never,
    "Layout": _never,
    "Generator": _never,
}
_ARGUMENT = re.compile(r"(?P<kind>[A-Za-z]+)(?P<items>\??)(?P<list>\[\d*\])?(?P<optional>\??) (?P<name>\w+)(?P<default>=.*)?")
_ENTRY = re.compile(r"\(([^()]*)\)([^()]*)")


def read_signature(text: str, *, numbers: bool = False) -> Signature:
    """Read arguments as ``Tensor self, *, ScalarType? dtype=None``.

    Raises:
        ValueError: the text has another form.
    """
    found: list[Parameter] = []
    keyword_only = False
    for part in _parts(re.sub(r"Tensor\([^()]*\)", "Tensor", text).replace("SymInt", "int")):
        if part == "*":
            keyword_only = True
            continue
        match = _ARGUMENT.fullmatch(part)
        if match is None or match["kind"] not in _KINDS:
            raise ValueError(f"unknown argument {part!r}")
        many = match["list"]
        found.append(
            Parameter(
                name=match["name"],
                kind=match["kind"],
                optional=bool(match["optional"] or (many is None and match["items"])),
                size=None if many is None else int(many[1:-1] or 0),
                items_optional=bool(many is not None and match["items"]),
                required=match["default"] is None,
                keyword_only=keyword_only,
            )
        )
    return Signature(tuple(found), numbers)


def _parts(text: str) -> Iterator[str]:
    """The arguments of ``text``: commas in brackets and quotes separate none."""
    for part in re.split(r",\s+(?![^\[\]]*\])(?![^']*'[^']*$)", " ".join(text.split())):
        if part:
            yield part


@cache
def _table() -> Mapping[str, str]:
    entries = [(arguments, name) for arguments, names in _ENTRY.findall(SIGNATURES) for name in names.split()]
    return _PSEUDO | {f"aten.{name}": arguments for arguments, name in entries}


@cache
def signature(target: str) -> Signature:
    """The arguments of an operator of the allow-list.

    Raises:
        GraphError: the operator is not on the list.
    """
    known = info(target)
    return read_signature(_table()[target], numbers=known.op_class is OpClass.ELEMENTWISE)


def check_call(declared: Signature, args: Sequence[Arg], kwargs: Sequence[tuple[str, Arg]], where: str) -> None:
    """Check the types of a call's arguments.

    Raises:
        GraphError: the text names the argument, its declared type and its value.
    """
    positions = [parameter for parameter in declared.parameters if not parameter.keyword_only]
    if len(args) > len(positions):
        raise GraphError(f"{where}: {len(args)} positional arguments, the operator takes at most {len(positions)}")
    given = dict(zip((parameter.name for parameter in positions), args, strict=False))
    known = {parameter.name for parameter in declared.parameters}
    for name, value in kwargs:
        if name in given or name not in known:
            raise GraphError(f"{where}: argument {name!r} {'stands twice' if name in given else 'is not one of the operator'}")
        given[name] = value
    for index, parameter in enumerate(declared.parameters):
        if parameter.name not in given:
            if parameter.required:
                raise GraphError(f"{where}: argument {parameter.name!r} is missing; it must be {parameter}")
            continue
        value = given[parameter.name]
        if not _fits(parameter, value, numbers=declared.numbers and index > 0):
            raise GraphError(f"{where}: argument {parameter.name!r} must be {parameter}, not {_shown(value)}")


def _fits(parameter: Parameter, value: Arg, *, numbers: bool) -> bool:
    if value is None and (parameter.optional or parameter.kind in ("Device", "Layout", "Generator")):
        return True
    fits = _KINDS[parameter.kind]
    if parameter.size is None:
        return fits(value) or (numbers and parameter.kind == "Tensor" and _is_number(value))
    if not isinstance(value, tuple):
        return parameter.size > 0 and fits(value)
    return all(fits(item) or (item is None and parameter.items_optional) for item in value)


def _shown(value: Arg) -> str:
    if isinstance(value, tuple):
        return f"a list of {len(value)}"
    if isinstance(value, (ValueRef, StateRef, LocalRef)):
        return "a tensor"
    text = repr(value.name) if isinstance(value, DTypeArg) else repr(value)
    return f"{type(value).__name__} {text[:60]}"
