"""What both ends of a link cached of samples that come again (``codecs.samples``).

Forwards, ``difference``: sender and receiver hold the value that the receiver had of each sample, and only the difference
travels. Backwards, ``error_feedback``: the sender holds what its codec has dropped of a sample's gradient and adds it when the
sample comes again; the receiver holds nothing. There is a table for each value, direction and pair of devices.

Samples are known by what they hold: the first stage that reads data takes a number from it, and every value carries the numbers
of its samples on to the next stage. A value whose first dim is not the samples', or whose numbers nobody knows, travels by its
codec alone. Both ends of a table change it by the same frames in the same order, and a frame says how many there were before it;
a receiver that has had another number refuses it.

A table belongs to an attempt: it begins empty, or with what a checkpoint has of it, at both ends. The sender writes it, because
the receiver's may be ahead by values of the next step. Memory: float32 values of the samples seen, up to ``limit_of``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from msgspec.structs import replace

from farflung.codecs import Codec, decode_payload
from farflung.codecs.base import Payload
from farflung.codecs.dense import Identity
from farflung.codecs.samples import Ids, SampleCoder, SampleTable, sample_ids
from farflung.engines.base import Array
from farflung.errors import CheckpointError, WireError
from farflung.messages.array_headers import ArrayHeader
from farflung.messages.arrays import FLOATING, PackedArray, decode_array, encode_array
from farflung.messages.data import Value
from farflung.messages.schema import UNSET, Sections
from farflung.plan.link_memory import Route, limit_of, remembers
from farflung.step.run_setup import RunSetup
from farflung.wire.arrays import DTYPES, compact, describe, restore

__all__ = ["MakeValue", "SampleCache", "numbered", "packed_value"]

#: Makes a value's message from its array, payload and sections; run, key and source are given already.
MakeValue = Callable[..., Value]

#: Samples of one message, and bytes of a sample's number in it.
_MOST_SAMPLES = 1 << 20
_ID_BYTES = 8


@dataclass(slots=True)
class _Table:
    """What one end of a route remembers."""

    table: SampleTable
    lock: threading.Lock = field(default_factory=threading.Lock)


class SampleCache:
    """One executor's tables. ``made`` is called on a sender's thread when a value that was announced has been encoded."""

    def __init__(self, setup: RunSetup, made: Callable[[], None]) -> None:
        self._setup, self._made = setup, made
        #: Whether any link of the plan remembers: then values carry the numbers of their samples.
        self.on = remembers(setup.plan)
        #: Guards the fields below. Each table has a lock of its own, because values are coded under that.
        self._lock = threading.Lock()
        self._tables: dict[Route, _Table] = {}
        #: (stage, step, micro-batch) -> source stage (one more than all: its own data) -> numbers
        self._ids: dict[tuple[int, int, int], dict[int, Ids]] = {}
        self._pending = 0

    # -- numbers of samples -------------------------------------------------------------------------------------------

    def read(self, stage: int, step: int, micro_batch: int, data: Mapping[str, Array]) -> None:
        """``stage`` has read ``data``."""
        if self.on and data:
            rows = self._setup.job.micro_batch_sizes[micro_batch]
            self._note(stage, step, micro_batch, len(self._setup.plan.stages), sample_ids(list(data.values()), rows))

    def carry(self, source: int, target: int, step: int, micro_batch: int) -> None:
        """A value went from ``source`` to ``target`` inside this device."""
        ids = self.ids(source, step, micro_batch)
        if ids is not None:
            self._note(target, step, micro_batch, source, ids)

    def ids(self, stage: int, step: int, micro_batch: int) -> Ids | None:
        """The numbers that ``stage`` calls the samples by: those of the first stage that sent them."""
        with self._lock:
            found = self._ids.get((stage, step, micro_batch))
            return found[min(found)] if found else None

    def begin(self, step: int) -> None:
        """``step`` begins: numbers of the steps before are forgotten."""
        with self._lock:
            self._ids = {key: value for key, value in self._ids.items() if key[1] >= step}

    def _note(self, stage: int, step: int, micro_batch: int, source: int, ids: Ids) -> None:
        with self._lock:
            self._ids.setdefault((stage, step, micro_batch), {})[source] = ids

    # -- sending ------------------------------------------------------------------------------------------------------

    def announce(self, route: Route, head: MakeValue, array: Array, codec: Codec | None, ids: Ids | None) -> Callable[[], Value]:
        """Return what makes the message of ``array`` for ``route``; to be called once, on a sender's thread."""
        with self._lock:
            self._pending += 1

        def encode() -> Value:
            try:
                return self._encode(route, head, array, codec, ids)
            finally:
                with self._lock:
                    self._pending -= 1
                self._made()  # without the lock: the thread that it wakes asks ``settled`` under the lock of the inbox

        return encode

    @property
    def settled(self) -> bool:
        """Whether all that was announced is encoded, so the senders' tables are those of the end of a step."""
        with self._lock:
            return not self._pending

    def _encode(self, route: Route, head: MakeValue, array: Array, codec: Codec | None, ids: Ids | None) -> Value:
        rows = _by_sample(array, ids) if route in self._setup.routes else None
        if codec is None or ids is None or rows is None:
            value = packed_value(head, array, codec)
        elif route.memory == "difference":
            value = self._differences(route, head, rows, codec, ids)
        else:
            value = self._fed_back(route, head, rows, codec, ids)
        return value if route.gradient else numbered(value, ids)

    def _differences(self, route: Route, head: MakeValue, array: Array, codec: Codec, ids: Ids) -> Value:
        meta, flat = compact(array)
        held = self._table(route)
        with held.lock:
            count = held.table.messages
            (payload,) = SampleCoder(codec=codec).encode(flat, ids, held.table)
        header, sections = ArrayHeader.of(meta), tuple(payload.sections)
        return head(array=header, difference=payload.to_header(), message=count, sections=sections)

    def _fed_back(self, route: Route, head: MakeValue, array: Array, codec: Codec, ids: Ids) -> Value:
        """``codecs.memory.ErrorFeedback`` by sample."""
        meta, flat = compact(array)
        held = self._table(route)
        with held.lock, np.errstate(over="ignore", invalid="ignore"):
            rows = flat.reshape(len(ids), -1).astype(np.float32)
            wanted = rows + held.table.bases(ids, rows.shape[1])
            sent = wanted.astype(flat.dtype)
            payload = codec.encode(sent.reshape(meta.shape) if meta.strides is None else sent.reshape(-1))
            left = wanted - decode_payload(payload).reshape(rows.shape).astype(np.float32)
            held.table.put(ids, np.where(np.isfinite(left), left, np.float32(0)))
        return head(array=ArrayHeader.of(meta), payload=payload.to_header(), sections=tuple(payload.sections))

    # -- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, route: Route, place: tuple[int, int], value: Value, limit: int) -> tuple[Sections, Array | None]:
        """Return the sections of ``value`` beside the samples' numbers; and the array, where it came as a difference.

        ``place``: step and micro-batch. ``limit``: the most bytes that the array may take.

        Raises:
            WireError: the plan has no memory there, or the two ends disagree.
            CodecError: the payload is malformed.
        """
        sections, ids = value.sections, None
        if value.samples is not UNSET:
            sections, ids = self._numbers(route, place, value.samples, sections)
        if value.difference is UNSET:
            return sections, None
        if route not in self._setup.routes or route.memory != "difference" or ids is None:
            raise WireError(f"a difference came for {route.value!r:.80}, and the plan sends none there")
        return (), self._decode(route, value, sections, (ids, limit))

    def _numbers(self, route: Route, place: tuple[int, int], count: int, sections: Sections) -> tuple[Sections, Ids]:
        known = self.on and not route.gradient and 0 < count <= _MOST_SAMPLES
        if not known or not sections or memoryview(sections[-1]).nbytes != count * _ID_BYTES:
            raise WireError(f"{count} samples of {route.value!r:.80} came without their numbers, or where the plan has none")
        ids = np.frombuffer(sections[-1], "<u8").astype(np.uint64)
        self._note(route.target, *place, route.source, ids)
        return sections[:-1], ids

    def _decode(self, route: Route, value: Value, sections: Sections, expected: tuple[Ids, int]) -> Array:
        meta, (ids, limit) = value.array.meta, expected
        if meta.memory_nbytes > limit:  # before memory is taken, and before the table changes
            raise WireError(f"oversized difference for {route.value!r:.80}: {meta.memory_nbytes} bytes, the limit is {limit}")
        if meta.dtype not in FLOATING or meta.packed_numel % len(ids):
            raise WireError(f"{meta.numel} elements of {meta.dtype} are not those of {len(ids)} samples")
        payload = Payload.from_header(value.difference, sections, 4 * meta.packed_numel)
        held = self._table(route)
        with held.lock:
            if value.message != held.table.messages:
                raise WireError(
                    f"the two ends of {route.value!r:.80} remember differently: message {value.message} came after "
                    f"{held.table.messages}"
                )
            rows = SampleCoder(codec=Identity()).decode([payload], ids, held.table, meta.packed_numel // len(ids))
        with np.errstate(over="ignore"):
            flat = rows.reshape(-1).astype(DTYPES[meta.dtype])
        return restore(meta, flat, limit)

    def arrived(self, route: Route, ids: Ids | None, made: Value) -> Array:
        """Return what the receiver will have of a value that was just encoded here as ``made`` (for those who measure errors)."""
        meta = made.array.meta
        if made.difference is UNSET or ids is None:
            rest = made.sections if made.samples is UNSET else made.sections[:-1]
            return decode_array(PackedArray(made.array, made.payload, rest), meta.memory_nbytes)
        held = self._table(route)
        with held.lock:
            rows = held.table.bases(ids, meta.packed_numel // len(ids))
        return restore(meta, rows.reshape(-1).astype(DTYPES[meta.dtype]), meta.memory_nbytes)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def kept(self) -> dict[str, Array]:
        """The tables of what is sent from here, as slots of a checkpoint."""
        found: dict[str, Array] = {}
        for route in self._ways():
            if route.sender == self._setup.device:
                for width, numbers in _by_width(self._table(route).table).items():
                    held = self._table(route).table.held
                    found[_slot(self._setup, route, "rows", width)] = np.stack([held[number] for number in numbers])
                    found[_slot(self._setup, route, "ids", width)] = np.array(numbers, np.uint64).view(np.int64)
        return found

    @property
    def marks(self) -> list[str]:
        """The names under which checkpoints have the tables that this device needs."""
        return sorted({_mark(route) for route in self._ways()})

    def load(self, slots: Mapping[str, Array]) -> None:
        """Begin with what ``kept`` gave at the senders.

        Raises:
            CheckpointError: a table is torn.
        """
        for route in self._ways():
            table, head = self._table(route).table, _slot(self._setup, route, "ids", 0).rpartition(".")[0]
            for key, ids in slots.items():
                begin, _, width = key.partition("/")[0].rpartition(".")
                if begin != head or key.partition("/")[2] != _mark(route):
                    continue
                rows = slots.get(_slot(self._setup, route, "rows", int(width)))
                if rows is None or rows.shape != (len(ids), int(width)):
                    raise CheckpointError(f"the checkpoint's memory of {route.value!r:.80} is torn: use an older checkpoint")
                table.put(ids.view(np.uint64), rows)
            table.restart()

    def _ways(self) -> list[Route]:
        return [route for route in self._setup.routes if self._setup.device in (route.sender, route.receiver)]

    def _table(self, route: Route) -> _Table:
        with self._lock:
            if route not in self._tables:
                limit = int(limit_of(self._setup.job.codec.memory_bytes, self._setup.routes))
                self._tables[route] = _Table(SampleTable(limit=limit, budget=self._setup.budget))
            return self._tables[route]


def packed_value(head: MakeValue, array: Array, codec: Codec | None) -> Value:
    """Return the message of ``array`` by ``codec`` (None: as it is)."""
    packed = encode_array(array, codec)
    return head(array=packed.array, payload=packed.payload, sections=packed.sections)


def numbered(value: Value, ids: Ids | None) -> Value:
    """Return the message ``value`` with the numbers of its samples, if they are known."""
    if ids is None:
        return value
    return replace(value, samples=len(ids), sections=(*value.sections, ids.astype("<u8").tobytes()))


def _slot(setup: RunSetup, route: Route, what: str, width: int) -> str:
    """Replicas count by their place, so a table is found again by those who take over."""
    places = [setup.plan.stages[stage].devices for stage in (route.source, route.target)]
    ends = (route.receiver, route.sender) if route.gradient else (route.sender, route.receiver)
    ranks = ".".join(str(devices.index(end)) for devices, end in zip(places, ends, strict=True))
    sizes = ".".join(str(len(devices)) for devices in places)
    return f"samples.{route.memory}.{sizes}.{ranks}.{what}.{width}/{_mark(route)}"


def _mark(route: Route) -> str:
    """In place of a parameter's name."""
    text = f"{route.value} {route.source} {route.target}"
    return "@" + blake2b(text.encode(), digest_size=16).hexdigest()


def _by_width(table: SampleTable) -> dict[int, list[int]]:
    """Elements of a sample -> the samples that have so many."""
    found: dict[int, list[int]] = {}
    for number, row in table.held.items():
        found.setdefault(row.size, []).append(number)
    return found


def _by_sample(array: Array, ids: Ids | None) -> Array | None:
    """``array``, the elements of one sample after the other in memory; None: its first dim is not the samples'."""
    if ids is None or array.ndim == 0 or array.shape[0] != len(ids) or not array.size or array.dtype.name not in FLOATING:
        return None
    outer = all(step <= array.strides[0] for step, size in zip(array.strides, array.shape, strict=True) if size > 1)
    meta = describe(array)
    return array if outer and meta.packed_numel == array.size else np.ascontiguousarray(array)
