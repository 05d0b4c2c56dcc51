"""Checks of strategies' settings: numbers of steps, rates, codecs and memories; each error names the setting and a remedy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from farflung.errors import InputError
from farflung.sync.base import MEMORY_COPIES, Sent, Traits, codec_name

__all__ = ["ROUGH", "check_codec", "check_memory", "check_number", "check_steps", "check_switch"]

#: Codecs that leave out most values, or blur them to one or two bits.
ROUGH = frozenset({"topk", "adatopk", "randomk", "sign", "int2", "lowrank"})


def check_steps(name: str, value: object, low: int = 1) -> None:
    """A number of steps, sets, fragments: a whole number of at least ``low``.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InputError(f"{name} = {value!r}: must be a whole number, {low} or more")


def check_switch(name: str, value: object) -> None:
    """True or false.

    Raises:
        InputError: it is neither.
    """
    if not isinstance(value, bool):
        raise InputError(f"{name} = {value!r}: write true or false")


def check_number(name: str, value: object, *, low: float = 0.0, below: float = math.inf, above: bool = False) -> None:
    """A number of at least ``low`` (greater than it with ``above``) and less than ``below``.

    Raises:
        InputError: it is not.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= float(str(value)) < below or (above and float(str(value)) == low):
        most = "" if below == math.inf else f" and below {below:g}"
        raise InputError(f"{name} = {value!r}: must be a number, {'above' if above else 'at least'} {low:g}{most}")


def check_codec(traits: Traits, *, refused: Sequence[str] = ()) -> None:
    """Check that what a strategy sends survives its codec; ``refused``: codecs that this strategy can't use either.

    Sparse codecs leave out most values, and one or two bits blur them: of a gradient that is an error, of parameters it is ruin.

    Raises:
        InputError: it does not.
    """
    name, sent = traits.name, traits.sent
    codec: object = traits.codec  # what the user wrote, of any type
    if not isinstance(codec, str) or not codec:
        raise InputError(f"codec = {codec!r}: write a codec's name, e.g. 'identity'")
    if sent is Sent.SCALARS and codec != "identity":
        raise InputError(f"codec = {codec!r}: {name} sends single numbers, which no codec makes smaller; set 'identity'")
    name_of_codec = codec_name(codec)
    if (sent is Sent.PARAMETERS and name_of_codec in ROUGH) or name_of_codec in refused:
        what = sent.value if sent is Sent.PARAMETERS else "single coordinates"
        raise InputError(
            f"codec = {codec!r}: {name} compares or averages {what}, and this codec leaves out or blurs most of them; "
            "set 'identity', 'fp16', 'bf16', 'int8' or 'int4'"
        )


def check_memory(codec: str, memory: object, warm_up: object = 0) -> None:
    """Check that the memory is known and that the codec drops something to remember, or to warm up for.

    Raises:
        InputError: the memory is unknown, or the codec drops nothing.
    """
    check_steps("warm_up", warm_up, low=0)
    if not isinstance(memory, str) or codec_name(memory) not in MEMORY_COPIES:
        raise InputError(f"memory = {memory!r}: known are {', '.join(MEMORY_COPIES)}")
    if codec == "identity" and (codec_name(memory) != "none" or warm_up):
        raise InputError(
            f"memory = {memory!r}, warm_up = {warm_up} with codec = 'identity', which drops nothing: set a codec, or leave "
            "both out"
        )
