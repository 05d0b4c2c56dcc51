"""Values out of TOML tables that people write, with errors that name file, key, value and remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from farflung.errors import InputError
from farflung.known_names import known_names
from farflung.units import BytesPerSecond, Quantity, Seconds

__all__ = ["LINK_KEYS", "QUEUE", "Names", "TableReader", "probability"]

#: What a table can say about a link, and how each value is read (None: a share, such as 0.001 or "0.1 %").
LINK_KEYS: Mapping[str, type[Quantity] | None] = {
    "latency": Seconds,
    "bandwidth": BytesPerSecond,
    "jitter": Seconds,
    "loss": None,
    "corrupt": None,
    "queue": Seconds,
}


#: So many errors are told at once.
_TOLD = 8
#: Seconds that a packet waits for a link's rate at most, where nothing else is said.
QUEUE = 0.2


def probability(value: object) -> float:
    """A share from 0 to 1, as a number or as text in percent.

    Raises:
        InputError: it is neither.
    """
    text, scale = (value[:-1], 100.0) if isinstance(value, str) and value.endswith("%") else (value, 1.0)
    try:
        share = float(text) / scale  # type: ignore[arg-type]  # whatever has no float is refused below
    except (TypeError, ValueError, OverflowError):
        share = -1.0
    if isinstance(value, bool) or not 0 <= share <= 1:
        raise InputError(f'a share must be from 0 to 1, got {value!r}; write e.g. 0.001 or "0.1 %"')
    return share


class TableReader:
    """Reads tables of the file that errors call ``source``."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._wrong: list[str] = []

    def fail(self, key: str, text: str) -> InputError:
        """The error about a key."""
        return InputError(f"{self.source}: {key}: {text}")

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """What is wrong in the block waits for ``check``; the block ends there."""
        try:
            yield
        except InputError as error:
            self._wrong.append(str(error).removeprefix(f"{self.source}: "))

    def check(self) -> None:
        """Tell what was gathered.

        Raises:
            InputError: something was wrong; the text has the first few of it, and how many more there are.
        """
        if self._wrong:
            more = f"; and {len(self._wrong) - _TOLD} more" if len(self._wrong) > _TOLD else ""
            raise InputError(f"{self.source}: {'; '.join(self._wrong[:_TOLD])}{more}")

    def known(self, where: str, table: object, keys: set[str]) -> Mapping[str, Any]:
        """``table`` if it is one and has known keys only."""
        if not isinstance(table, dict):
            raise self.fail(where, f"must be a table, got {table!r}; write [{where}]")
        for key in table:
            if key not in keys:
                raise self.fail(f"{where}.{key}".lstrip("."), f"unknown key; {known_names(key, sorted(keys))}")
        return table

    def tables(self, body: Mapping[str, Any], key: str) -> Sequence[object]:
        """A list of tables."""
        found = body.get(key, [])
        if not isinstance(found, list):
            raise self.fail(key, f"must be a list of tables, got {found!r}; write [[{key}]]")
        return found

    def quantity(self, where: str, table: Mapping[str, Any], key: str, kind: type[Quantity]) -> Quantity:
        """A value with a unit."""
        if key not in table:
            raise self.fail(f"{where}.{key}", f"is missing; write e.g. {key} = {kind.examples.split(' or ')[0]}")
        try:
            return kind.typed(table[key])
        except InputError as error:
            raise self.fail(f"{where}.{key}", str(error)) from None

    def text(self, where: str, table: Mapping[str, Any], key: str, default: str | None) -> str:
        """A text."""
        value = table.get(key, default)
        if value is None:
            raise self.fail(f"{where}.{key}", f'is missing; write e.g. {key} = "laptop"')
        if not isinstance(value, str):
            raise self.fail(f"{where}.{key}", f"must be text, got {value!r}; put it in quotes")
        return value

    def link_values(self, where: str, table: Mapping[str, Any]) -> dict[str, float]:
        """What the table says about a link, in base units."""
        found: dict[str, float] = {}
        for key, kind in LINK_KEYS.items():
            if key not in table:
                continue
            if kind is not None:
                found[key] = float(self.quantity(where, table, key, kind))
                continue
            try:
                found[key] = probability(table[key])
            except InputError as error:
                raise self.fail(f"{where}.{key}", str(error)) from None
        return found

    def nat(self, where: str, value: object, name: str) -> str:
        """The name of the NAT that the device called ``name`` is behind: its own if ``value`` is true."""
        if isinstance(value, bool):
            return f"nat of {name}" if value else ""
        if not isinstance(value, str):
            raise self.fail(f"{where}.nat", f'must be true, false or a name, got {value!r}; write e.g. nat = "home"')
        return value


class Names:
    """Names of devices and regions, and the indices of the devices that they stand for; a device beats a region."""

    def __init__(self, reader: TableReader, names: Sequence[str], regions: Sequence[str]) -> None:
        self._reader = reader
        self.devices = {name: [i] for i, name in enumerate(names)}
        self.regions: dict[str, list[int]] = {}
        for i, region in enumerate(regions):
            self.regions.setdefault(region, []).append(i)
        self.regions.pop("", None)

    def find(self, where: str, name: object) -> list[int]:
        """The indices that ``name`` stands for."""
        members = (self.devices.get(name) or self.regions.get(name)) if isinstance(name, str) else None
        if members is None:
            listed = ", ".join(sorted([*self.regions, *self.devices])[:16])
            raise self._reader.fail(where, f"{name!r} is no device and no region; known are {listed}")
        return members
