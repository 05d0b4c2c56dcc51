"""Which optimizer group a parameter belongs to, and whether that is frozen."""

from __future__ import annotations

from farflung.errors import InputError
from farflung.job.patterns import compile_pattern
from farflung.job.spec import OptimizerSpec

__all__ = ["group_of", "is_frozen"]


def group_of(spec: OptimizerSpec, name: str) -> int:
    """The index of the first group that matches parameter ``name``; ``len(spec.groups)`` if none does.

    Raises:
        InputError: a group's ``match`` is not a regular expression.
    """
    for index, group in enumerate(spec.groups):
        if group.names:
            if name in group.names:
                return index
            continue
        try:
            if compile_pattern(group.match).search(name):
                return index
        except InputError as error:
            raise InputError(f"optimizer group {index}: {group.match!r:.80} {error}") from None
    return len(spec.groups)


def is_frozen(spec: OptimizerSpec, name: str) -> bool:
    """Whether parameter ``name`` belongs to a frozen group: it gets no gradient and does not change.

    Raises:
        InputError: a group's ``match`` is not a regular expression.
    """
    index = group_of(spec, name)
    return index < len(spec.groups) and spec.groups[index].frozen
