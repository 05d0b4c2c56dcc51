"""What the sections of a job have in common: one-line errors, and the types of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from farflung.errors import InputError
from farflung.job.explain import explain
from farflung.units import Quantity

__all__ = ["Count", "Label", "Ratio", "Section", "one_or_more", "quantity"]

#: A count of at most 10^9: more is a typing error, and no size that PyTorch accepts.
Count = Annotated[int, Field(ge=1, le=10**9)]
Ratio = Annotated[float, Field(ge=1.0)]
#: A name that a person reads.
Label = Annotated[str, Field(min_length=1, max_length=128)]


def quantity(kind: type[Quantity]) -> Callable[[object], object]:
    """A text with a unit as a number of base units; what is none is left to be refused."""

    def read(value: object) -> object:
        try:
            return float(kind.parse(value)) if isinstance(value, str) else value
        except InputError:
            return value

    return read


def one_or_more(value: object) -> object:
    """A text as the only item of a tuple; what is no list is left to be refused."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


if TYPE_CHECKING:  # type checkers read the fields of the sections
    _Model = BaseModel
else:

    class _OneLine(type(BaseModel)):
        """Calls of a section raise the one clear line of a job file; sections inside of others are not called."""

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise InputError(f"{cls.__name__}: {explain(error, cls)}") from None

    class _Model(BaseModel, metaclass=_OneLine):
        """A section of a job file."""


class Section(_Model):
    """A section of a job file: frozen, without unknown keys and without infinite numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
