"""The graph as a versioned JSON document: ``write`` and ``read_fields`` (``Graph.to_json`` and ``Graph.from_json`` call them).

The text is canonical (sorted keys, no spaces, ASCII), so its hash names the graph. Inside arguments a reference is an
object with one key: ``{"v": "op:1"}`` a value, ``{"s": name}`` a state, ``{"l": 3}`` a step of an initializer program,
``{"d": "float32"}`` an element type, ``{"f": "inf"}`` a number that JSON can't write; a list is a tuple. Fields that have
their default are left out. ``read_fields`` trusts nothing; ``graph.validate`` then checks every rule.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from farflung.errors import GraphError, VersionError
from farflung.graph.nodes import (
    Arg,
    DTypeArg,
    GraphFields,
    InitStep,
    LocalRef,
    Op,
    OpKind,
    State,
    StateKind,
    StateRef,
    TensorSpec,
    ValueRef,
)
from farflung.graph.validate import Limits

__all__ = ["GRAPH_FORMAT", "GRAPH_VERSION", "Fields", "parse", "read_fields", "read_step", "write", "write_step"]

GRAPH_FORMAT = "farflung-graph"
GRAPH_VERSION = 1

T = TypeVar("T")
_ODD_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def write(graph: GraphFields) -> str:
    """The canonical document of ``graph`` (not validated: a graph that breaks a rule can be written but not read)."""
    document: dict[str, Any] = {
        "format": GRAPH_FORMAT,
        "version": GRAPH_VERSION,
        "name": graph.name,
        "mode": graph.mode,
        "ops": [_write_op(op) for op in graph.ops],
        "states": [_write_state(state) for state in graph.states],
        "outputs": [[name, str(value)] for name, value in graph.outputs],
        "state_updates": [[name, str(value)] for name, value in graph.state_updates],
        "meta": dict(graph.meta),
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _write_op(op: Op) -> dict[str, Any]:
    return _drop_defaults(
        {
            "name": op.name,
            "kind": op.kind.value,
            "target": op.target,
            "args": [_write_arg(arg) for arg in op.args],
            "kwargs": {key: _write_arg(arg) for key, arg in op.kwargs},
            "outputs": [_write_spec(spec) for spec in op.outputs],
            "module": op.module,
            "module_type": op.module_type,
            "occurrence": op.occurrence,
            "no_grad": op.no_grad,
            "rng": op.rng,
        },
        _OP_DEFAULTS,
    )


def _write_state(state: State) -> dict[str, Any]:
    return _drop_defaults(
        {
            "name": state.name,
            "kind": state.kind.value,
            "spec": _write_spec(state.spec),
            "trainable": state.trainable,
            "persistent": state.persistent,
            "aliases": list(state.aliases),
            "init": [write_step(step) for step in state.init],
            "data": None if state.data is None else base64.b64encode(state.data).decode("ascii"),
        },
        _STATE_DEFAULTS,
    )


def write_step(step: InitStep) -> dict[str, Any]:
    """A step of a program as a JSON object."""
    fields = {
        "target": step.target,
        "args": [_write_arg(arg) for arg in step.args],
        "kwargs": {key: _write_arg(arg) for key, arg in step.kwargs},
        "rng": step.rng,
        "like": None if step.like is None else list(step.like),
        "output": step.output,
    }
    return _drop_defaults(fields, _STEP_DEFAULTS)


_CALL_DEFAULTS: Mapping[str, Any] = {"args": [], "kwargs": {}, "rng": None}
_STEP_DEFAULTS: Mapping[str, Any] = {**_CALL_DEFAULTS, "like": None, "output": 0}
_OP_DEFAULTS: Mapping[str, Any] = {
    **_CALL_DEFAULTS,
    "module": "",
    "module_type": "",
    "occurrence": 0,
    "no_grad": False,
}
_STATE_DEFAULTS: Mapping[str, Any] = {"trainable": False, "persistent": True, "aliases": [], "init": [], "data": None}
_GRAPH_DEFAULTS: Mapping[str, Any] = {"state_updates": [], "meta": {}}


def _drop_defaults(fields: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in defaults or value != defaults[key]}


def _write_spec(spec: TensorSpec) -> list[Any]:
    return [spec.dtype, list(spec.shape)]


def _write_arg(arg: Arg) -> Any:
    match arg:
        case tuple():
            return [_write_arg(item) for item in arg]
        case ValueRef():
            return {"v": str(arg)}
        case StateRef():
            return {"s": arg.name}
        case LocalRef():
            return {"l": arg.index}
        case DTypeArg():
            return {"d": arg.name}
        case float() if not math.isfinite(arg):
            return {"f": "nan" if math.isnan(arg) else "inf" if arg > 0 else "-inf"}
        case _:
            return arg


def read_fields(text: str | bytes, limits: Limits) -> dict[str, Any]:
    """Parse a document; return the fields of its graph, which is not validated yet.

    Raises:
        GraphError: corrupt, or too large.
        VersionError: written by another version of the format.
    """
    if len(text) > limits.document_bytes:
        raise GraphError(f"graph document has {len(text)} bytes: at most {limits.document_bytes} are read")
    document = Fields(parse(text), "graph document", _GRAPH_DEFAULTS)
    if document.take("format", str) != GRAPH_FORMAT:
        raise GraphError(f"not a graph document: its 'format' is not {GRAPH_FORMAT!r}")
    version = document.take("version", int)
    if version != GRAPH_VERSION:
        raise VersionError(
            f"graph document has version {version}, this program reads {GRAPH_VERSION}: use equal versions on all machines"
        )
    fields = {
        "name": document.take("name", str),
        "mode": document.take("mode", str),
        "ops": tuple(
            _read_op(Fields(raw, f"operator {i}", _OP_DEFAULTS), limits) for i, raw in enumerate(document.take("ops", list))
        ),
        "states": tuple(
            _read_state(Fields(raw, f"state {i}", _STATE_DEFAULTS), limits) for i, raw in enumerate(document.take("states", list))
        ),
        "outputs": _read_named_values(document.take("outputs", list), "outputs"),
        "state_updates": _read_named_values(document.take("state_updates", list), "state_updates"),
        "meta": tuple((key, _is(value, str, f"meta {key!r}")) for key, value in sorted(document.take("meta", dict).items())),
    }
    document.end()
    return fields


def parse(text: str | bytes) -> Any:
    """Parse JSON that nobody vouches for.

    Raises:
        GraphError: malformed, nested too deeply, or ambiguous.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except GraphError:
        raise
    except RecursionError:
        raise GraphError("graph document is nested too deeply") from None
    except ValueError as error:  # malformed JSON, bytes that are not UTF-8, integers of thousands of digits
        raise GraphError(f"graph document is not JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise GraphError("graph document has an object that names a key twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise GraphError(f"graph document holds the bare number {text}: write {{'f': ...}}")


def _is(value: Any, kind: type[T], where: str) -> T:
    """``value`` if it is exactly a ``kind`` (``bool`` is no ``int``)."""
    if type(value) is not kind:
        raise GraphError(f"{where} must be {kind.__name__}, not {type(value).__name__}")
    return value


class Fields:
    """A JSON object whose fields are taken one by one; unknown ones are refused."""

    def __init__(self, raw: Any, where: str, defaults: Mapping[str, Any]) -> None:
        self.raw: dict[str, Any] = _is(raw, dict, where)
        self.where = where
        self._defaults = defaults
        self._taken: set[str] = set()

    def take(self, key: str, kind: type[T]) -> T:
        """Return the field ``key``, which must be exactly a ``kind``."""
        self._taken.add(key)
        if key not in self.raw:
            if key not in self._defaults:
                raise GraphError(f"{self.where} has no field {key!r}")
            return self._defaults[key]  # type: ignore[no-any-return]  # the tables of defaults are right
        return _is(self.raw[key], kind, f"{self.where}, field {key!r}")

    def optional(self, key: str, kind: type[T]) -> T | None:
        """Return the field ``key``, or ``None``."""
        self._taken.add(key)
        return None if self.raw.get(key) is None else self.take(key, kind)

    def end(self) -> None:
        """Refuse fields that nobody took."""
        unknown = self.raw.keys() - self._taken
        if unknown:
            raise GraphError(f"{self.where} has the unknown field {min(unknown)[:60]!r}")


def _read_op(fields: Fields, limits: Limits) -> Op:
    name = fields.take("name", str)
    fields.where = f"operator {name[:100]!r}"
    op = Op(
        name=name,
        kind=_member(OpKind, fields, "kind"),
        target=fields.take("target", str),
        args=_read_args(fields, limits),
        kwargs=_read_kwargs(fields, limits),
        outputs=tuple(_read_spec(raw, fields.where) for raw in fields.take("outputs", list)),
        module=fields.take("module", str),
        module_type=fields.take("module_type", str),
        occurrence=fields.take("occurrence", int),
        no_grad=fields.take("no_grad", bool),
        rng=fields.optional("rng", int),
    )
    fields.end()
    return op


def _read_state(fields: Fields, limits: Limits) -> State:
    name = fields.take("name", str)
    fields.where = f"state {name[:100]!r}"
    steps = fields.take("init", list)
    state = State(
        name=name,
        kind=_member(StateKind, fields, "kind"),
        spec=_read_spec(fields.take("spec", list), fields.where),
        trainable=fields.take("trainable", bool),
        persistent=fields.take("persistent", bool),
        aliases=tuple(_is(alias, str, f"{fields.where}, an alias") for alias in fields.take("aliases", list)),
        init=tuple(read_step(raw, f"{fields.where}, step {i}", limits) for i, raw in enumerate(steps)),
        data=_read_data(fields),
    )
    fields.end()
    return state


def read_step(raw: Any, where: str, limits: Limits) -> InitStep:
    """Read what ``write_step`` wrote.

    Raises:
        GraphError: the step has another form.
    """
    fields = Fields(raw, where, _STEP_DEFAULTS)
    step = InitStep(
        target=fields.take("target", str),
        args=_read_args(fields, limits),
        kwargs=_read_kwargs(fields, limits),
        rng=fields.optional("rng", int),
        like=_read_like(fields),
        output=fields.take("output", int),
    )
    fields.end()
    return step


def _read_like(fields: Fields) -> tuple[str, int] | None:
    raw = fields.optional("like", list)
    if raw is None:
        return None
    if len(raw) != 2:
        raise GraphError(f"{fields.where}: 'like' must be [state, number]")
    return _is(raw[0], str, f"{fields.where}, field 'like'"), _is(raw[1], int, f"{fields.where}, field 'like'")


def _read_data(fields: Fields) -> bytes | None:
    text = fields.optional("data", str)
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):  # ValueError: characters outside ASCII
        raise GraphError(f"{fields.where}: 'data' is not base64") from None


E = TypeVar("E", OpKind, StateKind)


def _member(kind: type[E], fields: Fields, key: str) -> E:
    text = fields.take(key, str)
    try:
        return kind(text)
    except ValueError:
        raise GraphError(f"{fields.where}: unknown kind {text[:60]!r}, known are {', '.join(kind)}") from None


def _read_spec(raw: Any, where: str) -> TensorSpec:
    items = _is(raw, list, f"{where}, a tensor")
    if len(items) != 2:
        raise GraphError(f"{where}: a tensor is written [element type, shape]")
    shape = _is(items[1], list, f"{where}, a shape")
    return TensorSpec(
        dtype=_is(items[0], str, f"{where}, an element type"), shape=tuple(_is(n, int, f"{where}, a size") for n in shape)
    )


def _read_args(fields: Fields, limits: Limits) -> tuple[Arg, ...]:
    return tuple(_read_arg(raw, fields.where, limits.depth) for raw in fields.take("args", list))


def _read_kwargs(fields: Fields, limits: Limits) -> tuple[tuple[str, Arg], ...]:
    raw = fields.take("kwargs", dict)
    return tuple((key, _read_arg(raw[key], fields.where, limits.depth)) for key in sorted(raw))


def _read_arg(raw: Any, where: str, depth: int) -> Arg:
    if depth == 0:
        raise GraphError(f"{where}: an argument is nested too deeply")
    if raw is None or isinstance(raw, (bool, int, float, str)):
        return raw
    if isinstance(raw, list):
        return tuple(_read_arg(item, where, depth - 1) for item in raw)
    if len(raw) == 1:
        (tag, value), *_ = raw.items()
        if tag in _TAGS:
            return _TAGS[tag](value, where)
    raise GraphError(f"{where}: an argument must have one of the tags {', '.join(sorted(_TAGS))}")


def _read_value(raw: Any, where: str) -> ValueRef:
    text = _is(raw, str, f"{where}, a reference")
    name, colon, index = text.partition(":")
    # One way to write each reference: no sign, no leading zero, index 0 left out; else two texts would name one graph.
    if colon and not (index.isascii() and index.isdigit() and index[0] != "0" and len(index) <= 6):
        raise GraphError(f"{where}: {text[:100]!r} is not a reference (operator or operator:index)")
    return ValueRef(name, int(index) if colon else 0)


def _read_odd_float(raw: Any, where: str) -> float:
    text = _is(raw, str, f"{where}, a number")
    if text not in _ODD_FLOATS:
        raise GraphError(f"{where}: unknown number {text[:20]!r}, known are {', '.join(_ODD_FLOATS)}")
    return _ODD_FLOATS[text]


_TAGS: Mapping[str, Callable[[Any, str], Arg]] = {
    "v": _read_value,
    "s": lambda raw, where: StateRef(_is(raw, str, f"{where}, a reference")),
    "l": lambda raw, where: LocalRef(_is(raw, int, f"{where}, a reference")),
    "d": lambda raw, where: DTypeArg(_is(raw, str, f"{where}, an element type")),
    "f": _read_odd_float,
}


def _read_named_values(raw: list[Any], where: str) -> tuple[tuple[str, ValueRef], ...]:
    found = []
    for item in raw:
        pair = _is(item, list, f"{where}: an entry")
        if len(pair) != 2:
            raise GraphError(f"{where}: an entry is written [name, value]")
        found.append((_is(pair[0], str, f"{where}: a name"), _read_value(pair[1], where)))
    return tuple(found)
