"""Write the reference pages that come from code: ``python scripts/reference.py``.

``docs/reference/commands.md`` comes from the command line, ``docs/reference/job.md`` from the models of the job file,
``docs/reference/cluster.md`` from those of the cluster file.
"""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

import click
import typer.main
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from farflung.cli.commands import COMMANDS
from farflung.cli.main import app
from farflung.codecs import CODECS
from farflung.frontends.recipes.registry import RECIPES
from farflung.job.section import Section
from farflung.job.spec import CodecSpec, JobSpec, ModelSpec, PlanSpec, SyncSpec
from farflung.launchers.cluster_spec import BrokerSpec, ClusterSpec, WorkersSpec
from farflung.launchers.registry import PROVIDERS
from farflung.planners import planner_names
from farflung.registry import Registry
from farflung.sync import STRATEGIES

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"

_COMMANDS = """# Command line

`farflung` has these commands. Each command prints the same text with `--help`. `python scripts/reference.py` generates this
page from the program, and a test compares the two. [Exit codes](exit-codes.md) lists what a failed command returns.
"""

_JOB = """# Job file keys

This page lists every key of a job file. [Write a job](../jobs.md) explains how to use them. `python scripts/reference.py`
generates this page from the models in `src/farflung/job/spec.py`, and a test compares the two.

A job file is TOML. The classes with the same keys serve `farflung.train`: `OptimizerSpec` is the section `[optimizer]`.
An unknown key is an error that names the known ones.
"""

_CLUSTER = """# Cluster file keys

This page lists every key of a cluster file. [Start a cluster from a file](../clusters.md) explains how to use them.
`python scripts/reference.py` generates this page from `src/farflung/launchers`, and a test compares the two.

A cluster file is TOML. An unknown key is an error that names the known ones.
"""


def _built_in(registry: Registry[Any]) -> list[str]:
    """The names in ``registry`` without those of installed plug-ins."""
    return [name for name in registry if registry.brought_by(name) is None]


#: The names that a key with open values accepts.
_REGISTRIES = {
    (ModelSpec, "recipe"): _built_in(RECIPES),
    (CodecSpec, "name"): [*_built_in(CODECS), "adatopk", "auto"],
    (PlanSpec, "planner"): planner_names(),
    (ClusterSpec, "provider"): _built_in(PROVIDERS),
    (SyncSpec, "strategy"): ["exact", *_built_in(STRATEGIES)],
}


def command_page() -> str:
    """Return the page on the command line."""
    parts, context = [_COMMANDS], click.Context(group := typer.main.get_command(app))
    panel = ""
    for name, entry in COMMANDS.items():
        if entry.panel != panel:
            panel = entry.panel
            parts.append(f"## {panel}\n")
        parts += [_command(full, one) for full, one in _commands(name, group.get_command(context, name))]
    return "\n".join(parts)


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield a command with its full name; of a group, each of its commands."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for inner in command.list_commands(click.Context(command)):
        yield from _commands(f"{name} {inner}", command.get_command(click.Context(command), inner))


def _command(name: str, command: Any) -> str:
    context = click.Context(command)
    shown = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option"]
    usage = " ".join([f"farflung {name}", *(["[OPTIONS]"] if options else []), *map(_metavar, arguments)])
    lines = [f"### farflung {name}", "", " ".join(inspect.cleandoc(command.help or "").split()), "", f"Usage: `{usage}`", ""]
    for title, parameters in (("argument", arguments), ("option", options)):
        if parameters:
            lines += [f"| {title} | type | default, bounds | meaning |", "| --- | --- | --- | --- |"]
            lines += [_row(one, context) for one in parameters]
            lines.append("")
    return "\n".join(lines)


def _metavar(argument: Any) -> str:
    name = f"{argument.name.upper()}{'...' if argument.nargs == -1 else ''}"
    return name if argument.required else f"[{name}]"


def _row(parameter: Any, context: Any) -> str:
    """One parameter, by the two columns that ``--help`` prints."""
    names, text = parameter.get_help_record(context)
    kind = re.search(r"<(.+)>|\{(.+)\}|\[(.+)\]", names)
    kinds = "" if kind is None else _kind(next(one for one in kind.groups() if one))
    extra = re.search(r"\s*\[((?:default|required|x|\d+|env)[^\]]*)\]$", text)
    meaning = text[: extra.start()] if extra else text
    if parameter.param_type_name == "argument":
        shown = f"`{parameter.name.upper()}`"
    else:
        shown = ", ".join(f"`{name}`" for name in (*sorted(parameter.opts, key=len, reverse=True), *parameter.secondary_opts))
        kinds = "" if getattr(parameter, "is_flag", False) else kinds
    default = "" if extra is None else _cell(re.sub(r"default: ([^;]*)", r"`\1`", extra[1]))
    return f"| {shown} | {kinds} | {default} | {_cell(meaning)} |"


def _kind(name: str) -> str:
    names = {"str": "text", "int": "integer", "int range": "integer", "float": "number", "float range": "number"}
    return names.get(name, _cell(name.replace("|", " or ")))


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


def job_page() -> str:
    """Return the page on the keys of a job file."""
    sections = {name: one.annotation for name, one in JobSpec.model_fields.items() if _model(one.annotation) is not None}
    keys = {name: one for name, one in JobSpec.model_fields.items() if name not in sections}
    parts = [_JOB, _section("Top level", JobSpec, keys)]
    for name, annotation in sections.items():
        model = _model(annotation)
        assert model is not None
        parts.append(_section(f"`[{name}]`", model, model.model_fields))
        for key, field in model.model_fields.items():
            inner = _model(*typing.get_args(field.annotation)[:1]) or _model(field.annotation)
            if inner is not None:
                parts.append(_section(f"Entries of `{name}.{key}`", inner, inner.model_fields, "###"))
    return "\n".join(parts)


def cluster_page() -> str:
    """Return the page on the keys of a cluster file."""
    sections = {"broker": BrokerSpec, "workers": WorkersSpec}
    keys = {name: one for name, one in ClusterSpec.model_fields.items() if name not in sections}
    parts = [_CLUSTER, _section("Top level", ClusterSpec, keys)]
    for name, model in {**sections, **{name: PROVIDERS.get(name).settings for name in _built_in(PROVIDERS)}}.items():
        parts.append(_section(f"`[{name}]`", model, model.model_fields))
        for key, field in model.model_fields.items():
            inner = _model(*typing.get_args(field.annotation)[:1])
            if inner is not None:
                parts.append(_section(f"Entries of `{name}.{key}`", inner, inner.model_fields, "###"))
    return "\n".join(parts)


def _model(annotation: Any = None) -> type[BaseModel] | None:
    """The section that ``annotation`` names, also as one of several types."""
    for one in (annotation, *typing.get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one if annotation is one or isinstance(annotation, UnionType) else None
    return None


def _section(title: str, model: type[BaseModel], fields: dict[str, FieldInfo], level: str = "##") -> str:
    comments = _comments(model)
    purpose = " ".join(inspect.cleandoc(model.__doc__ or "").split())
    rows = []
    for name, field in fields.items():
        kind = _plain(field.annotation) + _bounds(field.metadata)
        rows.append(f"| `{name}` | {kind} | {_value(field)} | {_cell(comments[name])}{_known(model, name)} |")
    head = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([f"{level} {title}", "", purpose, "", *head, *rows, ""])


def _known(model: type[BaseModel], name: str) -> str:
    """The names that a key with open values accepts."""
    names = _REGISTRIES.get((model, name), ())
    return f" Known: {', '.join(f'`{one}`' for one in sorted(names))}." if names else ""


def _comments(model: type[BaseModel]) -> dict[str, str]:
    """The comments ``#:`` above the fields of ``model`` and of the sections that it extends."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, Section) and kind is not Section:
            found |= _own_comments(kind)
    return found


def _own_comments(model: type[BaseModel]) -> dict[str, str]:
    source = inspect.getsource(model)
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above: list[str] = []
            at = node.lineno - 2
            while lines[at].strip().startswith("#:"):
                above.insert(0, lines[at].strip().removeprefix("#:").strip())
                at -= 1
            found[node.target.id] = " ".join(above)
    return found


def _bounds(metadata: Iterable[Any]) -> str:
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
    parts = [one for outer in metadata for one in getattr(outer, "metadata", [outer])]
    # bounds beyond 10^9 only catch typing errors
    found = [(key, getattr(one, key)) for one in parts for key in words if getattr(one, key, None) is not None]
    return "".join(f" {words[key]} {bound:g}" for key, bound in found if abs(bound) < 1e9)


def _plain(annotation: Any) -> str:
    """``annotation`` in the words of a TOML file."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    names = {int: "integer", float: "number", str: "text", bool: "true or false"}
    if annotation in names:
        return names[annotation]
    if origin is typing.Annotated:
        return _plain(inner[0]) + _bounds(inner[1:])
    if origin is typing.Literal:
        return ", ".join(f'`"{one}"`' for one in inner)
    if origin in (list, tuple):
        kinds = [_plain(one) for one in inner if one is not Ellipsis]
        first, _, rest = kinds[0].partition(" ")
        return (
            f"list of {len(kinds)} {first}s {rest}".rstrip() if Ellipsis not in inner and origin is tuple else f"list: {kinds[0]}"
        )
    if origin is dict:
        return "table"
    if origin is UnionType or origin is typing.Union:
        return " or ".join(_plain(one) for one in inner if one is not NoneType)
    return "table"


def _value(field: FieldInfo) -> str:
    value = field.default
    if field.is_required():
        return "required"
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "`{}`"
    if isinstance(value, bool):
        return f"`{value}`".lower()
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


PAGES = {"commands.md": command_page, "job.md": job_page, "cluster.md": cluster_page}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(re.sub(r"\n{3,}", "\n\n", page()), encoding="utf-8")


if __name__ == "__main__":
    main()
