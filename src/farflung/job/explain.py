"""Turns a validation report into one line: key path, value, what is allowed; unknown keys name the close ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from farflung.known_names import did_you_mean, known_names

__all__ = ["explain"]

_SHOWN = 3
_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "none_required": "left out",
    "finite_number": "a finite number",
}
#: Values that no job file may have: a call of ``train`` with a function sets them.
_UNWRITTEN = ("'values'", "'captured'", "'caller'")
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line for the errors of a document of type ``model`` (the first few, then how many more)."""
    lines: dict[str, list[str]] = {}
    for item in error.errors(include_url=False):
        if item["type"] == "json_invalid":
            return f"not valid JSON: {item['ctx']['error']}"
        path, section = _locate(model, item["loc"])
        lines.setdefault(path, []).append(_line(path, section, item))
    texts = [found[0] if len(found) == 1 else _either(found) or _union(path, error) for path, found in lines.items()]
    more = f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more


def _line(path: str, section: type[BaseModel] | None, item: Mapping[str, Any]) -> str:
    kind = item["type"]
    if kind == "extra_forbidden":
        return f"unknown key {path}: {_close(path.rpartition('.')[2], section)}"
    if kind == "missing":
        return f"{path} is missing: add it"
    shown = _show(item["input"])
    context = item.get("ctx", {})
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{path} = {shown}: must be {words} {_figure(context[key])}"
    if kind == "literal_error":
        return f"{path} = {shown}: must be {_allowed(item['input'], context['expected'])}"
    if kind == "too_short":
        return f"{path} = {shown}: must have at least {context['min_length']} items"
    if kind == "too_long":
        return f"{path} = {shown}: must have at most {context['max_length']} items"
    allowed = _KINDS.get(kind)
    return f"{path} = {shown}: must be {allowed}" if allowed else f"{path} = {shown}: {item['msg']}"


def _allowed(given: object, expected: str) -> str:
    """The values ``expected``, without those that only a program sets, and the one that is close to ``given``."""
    values = [value for value in expected.replace(" or ", ", ").split(", ") if value not in _UNWRITTEN]
    if len(values) == 1:  # beside another type, which follows
        return values[0]
    hint = did_you_mean(given, [value.strip("'") for value in values])
    return f"{', '.join(values[:-1])} or {values[-1]}" + (f"; {hint.rstrip()}" if hint else "")


def _figure(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _either(found: list[str]) -> str:
    """What a value of few kinds must be, from the lines of all kinds; "" where they are many or not of one form."""
    parts = [line.partition(": must be ") for line in found]
    if len(parts) > _SHOWN or len({head for head, _, _ in parts}) > 1 or not all(rule for _, _, rule in parts):
        return ""
    return f"{parts[0][0]}: must be {', or '.join(rule for _, _, rule in parts)}"


def _union(path: str, error: ValidationError) -> str:
    for item in error.errors(include_url=False):
        if ".".join(map(str, item["loc"])).startswith(path):
            return f"{path} = {_show(item['input'])}: must be a number, a text, true or false, or a list of whole numbers"
    return path


def _close(key: str, section: type[BaseModel] | None) -> str:
    known = sorted(section.model_fields) if section is not None else []
    return known_names(key, known, most=2)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _locate(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, type[BaseModel] | None]:
    """The key path as written in the file, without the tags of union branches, and the section that holds the key."""
    parts: list[str] = []
    section: type[BaseModel] | None = model
    holder: type[BaseModel] | None = model
    keys = False  # whether what comes next is a key of a table that is no section
    for part in loc:
        if isinstance(part, int):
            parts[-1] += f"[{part}]"
            continue
        if section is None and parts and not keys:
            break  # the tag of a union's branch
        parts.append(part)
        if section is not None:
            holder = section
            field = section.model_fields.get(part)
            section = None if field is None else _section_of(field.annotation)
            keys = field is not None and get_origin(field.annotation) is dict
        else:
            keys = False
    return ".".join(parts) or "document", holder


def _section_of(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _section_of(inner)
        if found is not None:
            return found
    return None
