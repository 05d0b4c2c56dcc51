"""The devices that ``farflung join --devices`` names."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.engines.devices import ComputeDevice, choose_device
from farflung.errors import InputError

__all__ = ["ALL_DEVICES", "check_devices", "parse_devices"]

ALL_DEVICES = "all"
#: Ranks of one site. Each has two descriptors in the message that starts them all, which carries at most 253.
_MOST_RANKS = 64
_EXAMPLES = "write all, numbers such as 0,1, or names such as cuda:0,cuda:1 or cpu,cpu"


def parse_devices(text: str) -> tuple[str, ...]:
    """Return the words of ``text``; a number N stands for the accelerator N.

    Raises:
        InputError: it names fewer than two devices, or too many.
    """
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise InputError(f"--devices {text!r:.60} has an empty name: {_EXAMPLES}")
    if words != (ALL_DEVICES,) and len(words) < 2:
        raise InputError(f"--devices {text!r:.60} names one device: name at least two, or use --device {words[0]}")
    if len(words) > _MOST_RANKS:
        raise InputError(
            f"--devices names {len(words)} devices, a site has at most {_MOST_RANKS}: join the others as a second site"
        )
    return words


def check_devices(words: Sequence[str], found: Sequence[ComputeDevice]) -> tuple[ComputeDevice, ...]:
    """Return the devices that ``words`` mean; ``found`` are all devices of this machine, accelerators first.

    Raises:
        InputError: this machine has no such device, or the devices are of several kinds, or one is named twice.
    """
    accelerators = [device for device in found if device.kind != "cpu"]
    if tuple(words) == (ALL_DEVICES,):
        if len(accelerators) < 2:
            there = ", ".join(str(device) for device in found)
            raise InputError(f"--devices all needs two accelerators: there is {there}; use --device auto, or --devices cpu,cpu")
        words = [device.name for device in accelerators if device.kind == accelerators[0].kind]
    kind = accelerators[0].kind if accelerators else "cuda"
    chosen = tuple(choose_device(f"{kind}:{word}" if word.isdecimal() else word, found) for word in words)
    again = next((device.name for device in chosen if device.kind != "cpu" and chosen.count(device) > 1), None)
    if again is not None:
        raise InputError(f"--devices names {again!r} twice: only cpu can have several ranks; {_EXAMPLES}")
    kinds = sorted({device.kind for device in chosen})
    if len(kinds) > 1:
        raise InputError(
            f"--devices names {' and '.join(kinds)}: the ranks of a site are of one kind; join each kind as a worker"
        )
    return chosen
