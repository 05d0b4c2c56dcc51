"""Whether a job's data fit its model, as far as that is known without reading the data."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from farflung.data.base import bind
from farflung.data.job_source import open_source
from farflung.data.tokenizers import BytesTokenizer, FileTokenizer
from farflung.errors import DataError
from farflung.graph.ir import Graph, TensorSpec
from farflung.job.spec import DataSpec

__all__ = ["check_fit", "check_vocabulary", "placeholders_of"]


def placeholders_of(graph: Graph) -> dict[str, TensorSpec]:
    """The graph's placeholders with their specs, in the order of the model's call."""
    order = dict(graph.meta).get("inputs", "")
    names = order.split(",") if order else [op.name for op in graph.placeholders]
    present = {op.name: op.outputs[0] for op in graph.placeholders}
    return {name: present[name] for name in names if name in present}


def check_vocabulary(data: DataSpec, graph: Graph, filled: Collection[str], size: int) -> None:
    """See that every embedding that reads one of the placeholders ``filled`` has a row for each of the tokenizer's ``size`` ids.

    Raises:
        DataError: one has not.
    """
    for op in graph.ops:
        read = {value.op for value in op.values()} & set(filled)
        if op.target != "aten.embedding.default" or not read:
            continue
        rows = graph.state[next(op.states())].spec.shape[0]
        if rows < size:
            raise DataError(
                f"data.tokenizer = {data.tokenizer!r} has {size} ids, the model's vocabulary {rows}: raise the vocabulary in "
                "model.args, or choose another tokenizer"
            )


def check_fit(data: DataSpec, graph: Graph, base: Path, *, evaluates: bool = False) -> None:
    """See that ``data`` can fill ``graph``, without the data: names, shapes and element types of text and images, and the
    vocabulary if the tokenizer is known here (``bytes``, or a file that lies below ``base`` too). Workers check all of it again,
    with their files. ``evaluates``: samples for an evaluation are needed as well.

    Raises:
        InputError: a placeholder has no field, or there is nothing to evaluate on.
        DataError: a field does not fit its placeholder, or the vocabulary is too small.
    """
    if not (data.tokenized or data.kind == "images"):
        return  # arrays say what they are in their files; the caller's own function is checked when it is called
    source = open_source(data, base)
    if evaluates:
        open_source(data, base, split="eval")
    fields = bind(data, source, placeholders_of(graph))
    if data.tokenized:
        size = _size(data, base)
        if size is not None:
            check_vocabulary(data, graph, fields, size)


def _size(data: DataSpec, base: Path) -> int | None:
    if data.tokenizer == "bytes":
        return BytesTokenizer.size
    path = base / Path(data.tokenizer).expanduser()
    if data.tokenizer == "chars" or not (path / "tokenizer.json" if path.is_dir() else path).is_file():
        return None
    return FileTokenizer(path, data.tokenizer).size
