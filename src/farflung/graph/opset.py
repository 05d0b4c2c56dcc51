"""The operator allow-list: what a graph document may name, and what the planners and the cut must know of each name.

Names only, no tensor library: engines look the names up in their own tables. A name that is not here is refused everywhere.
``graph.operator_tables`` has the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from farflung.errors import GraphError
from farflung.graph.operator_tables import ATEN, PSEUDO
from farflung.known_names import close_names

__all__ = ["OPSET", "OpClass", "OpInfo", "check_initializer", "check_target", "info"]


class OpClass(StrEnum):
    """What bounds an operator's cost."""

    INPUT = "input"
    VIEW = "view"
    CREATE = "create"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    NORM = "norm"
    RECURRENT = "recurrent"
    GEMM = "gemm"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    POOL = "pool"
    INDEX = "index"
    SORT = "sort"
    LOSS = "loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpInfo:
    """What is known of a name.

    ``grad_outputs``: the outputs that can carry a gradient (None: all floating ones). ``graph``/``initializer``: where the
    name may stand. ``graph.operator_tables`` explains the other flags.
    """

    name: str
    op_class: OpClass
    view: bool = False
    random: bool = False
    differentiable: bool = True
    in_place: bool = False
    graph: bool = True
    initializer: bool = False
    grad_outputs: tuple[int, ...] | None = None

    @property
    def cheap(self) -> bool:
        """Whether repeating it costs less than receiving its result over a slow link."""
        return self.op_class in _CHEAP


_CHEAP = frozenset({OpClass.VIEW, OpClass.CREATE, OpClass.ELEMENTWISE})


def _read(table: str, prefix: str) -> dict[str, OpInfo]:
    found: dict[str, OpInfo] = {}
    for line in table.split("\n"):
        if not line:
            continue
        short, _, rest = line.partition(": ")
        op_class, _, flags = rest.partition(" ")
        name = prefix + short
        if name in found:
            raise ValueError(f"operator {name} stands twice in the table")
        found[name] = OpInfo(
            name=name,
            op_class=OpClass(op_class),
            view="v" in flags,
            random="r" in flags,
            differentiable="n" not in flags,
            in_place="p" in flags,
            graph="I" not in flags,
            initializer="i" in flags or "I" in flags,
            grad_outputs=(0,) if short == "farflung.batch_norm" else None,
        )
    return found


#: The closed list: name -> what is known of it.
OPSET: Mapping[str, OpInfo] = _read(PSEUDO, "") | _read(ATEN, "aten.")


def info(name: str) -> OpInfo:
    """What is known of ``name``.

    Raises:
        GraphError: it is not on the list; the text names close ones.
    """
    try:
        return OPSET[name]
    except KeyError:
        shown = name if len(name) <= 100 else name[:100] + "..."
        raise GraphError(f"operator {shown!r} is not on the allow-list: {_hint(shown)}") from None


def _operator(name: str) -> str:
    return name.partition(".")[2].partition(".")[0]


def _hint(name: str) -> str:
    """Other overloads of the operator, else names that differ by a slip of the pen; another operator would be no help."""
    usable = [known for known, found in OPSET.items() if found.graph]
    base = name.rpartition(".")[0]
    overloads = [known for known in usable if base and known.rpartition(".")[0] == base]
    # operators are compared by their own names: "aten." and ".default" would make all of them alike
    alike = close_names(_operator(name), {_operator(known) for known in usable}, cutoff=0.8)
    close = overloads or [known for known in usable if _operator(known) in alike][:3]
    if not close:
        return f"the list has {len(usable)} operators (farflung.graph.opset), and none is written nearly so"
    return f"{'known are' if overloads else 'did you mean'} {', '.join(close)}{'' if overloads else '?'}"


def check_target(name: str) -> OpInfo:
    """``info`` of a name that may stand in a graph.

    Raises:
        GraphError: unknown, or only allowed in initializer programs (it changes its argument or leaves memory unset).
    """
    found = info(name)
    if not found.graph:
        raise GraphError(f"operator {name!r} is only allowed in initializer programs: a graph needs a pure operator")
    return found


def check_initializer(name: str) -> OpInfo:
    """``info`` of a name that may stand in an initializer program.

    Raises:
        GraphError: unknown, or not allowed there.
    """
    found = info(name)
    if not found.initializer:
        raise GraphError(f"operator {name!r} is not allowed in an initializer program")
    return found
