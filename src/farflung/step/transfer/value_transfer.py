"""Value transfer: key, codec and destination of every value that moves between stages.

Values between stages of one device go straight to the inbox, as they are. Between devices they are encoded by the link's codec
on the sender's thread and decoded on the receiver's transport thread. Everything that must be exact (verdicts, uses of tied
parameters, norms, evaluation) always travels uncompressed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from farflung.codecs import CODECS, get_codec, keyed
from farflung.codecs.base import Codec
from farflung.engines.base import Array, gradient_parts
from farflung.engines.encoded_value import EncodedValue, array_of
from farflung.errors import CodecError, WireError
from farflung.graph.cut import Edge
from farflung.graph.ir import Use
from farflung.messages.arrays import FLOATING, PackedArray, all_arrays, decode_array, pack_arrays, packed_payload
from farflung.messages.data import Batch, SideKey, SideValues, StateKey, UseKey, Value, ValueKey
from farflung.messages.schema import UNSET, Message, Sections
from farflung.plan.link_memory import route_of
from farflung.plan.model import CodecChoice
from farflung.step.inbox import Inbox
from farflung.step.run_setup import Phase, RunSetup, most_value_bytes
from farflung.step.transfer.codec_gauge import CodecGauge
from farflung.step.transfer.outbox import Outbox, OutgoingMessage
from farflung.step.transfer.sample_cache import SampleCache, numbered, packed_value
from farflung.step.transfer.spoilt_values import SpoiltValues
from farflung.telemetry.records import Link
from farflung.transports.base import Urgency

__all__ = ["StepRoutes", "ValueTransfer"]

_DENSE = CodecChoice()


class ValueTransfer:
    """Moves the values of one run for one worker."""

    def __init__(self, setup: RunSetup, inbox: Inbox, outbox: Outbox) -> None:
        self._setup = setup
        self._inbox = inbox
        self._outbox = outbox
        self._codecs: dict[CodecChoice, Codec | None] = {}
        self._edges = _edge_bytes(setup)
        #: Bytes of memory that one value can span.
        self.largest = max([most_value_bytes(setup), *self._edges.values()])
        #: What both ends of a link cached of samples that come again.
        self.samples = SampleCache(setup, inbox.poke)
        #: Time and error of codecs.
        self.gauge = CodecGauge()
        #: Who sent what is not finite.
        self.spoilt = SpoiltValues()

    def key(self, phase: Phase, step: int, micro_batch: int, edge: Edge, *, gradient: bool) -> ValueKey:
        """Under which key the value (or its gradient) of ``edge`` waits in the inbox."""
        return ValueKey(
            phase=phase.value,
            step=step,
            micro_batch=micro_batch,
            value=str(edge.value),
            source=edge.source,
            target=edge.target,
            gradient=gradient,
        )

    def send(self, phase: Phase, step: int, micro_batch: int, edge: Edge, value: Array | EncodedValue, *, gradient: bool) -> None:
        """Send the value of ``edge`` to its reading stage, or its gradient back to the stage that made it."""
        key = self.key(phase, step, micro_batch, edge, gradient=gradient)
        source, target = (edge.target, edge.source) if gradient else (edge.source, edge.target)
        peer = self._setup.places[target][micro_batch] if phase in (Phase.TRAIN, Phase.PROBE) else self._setup.primary(target)
        remembers = self.samples.on and phase is Phase.TRAIN
        if peer == self._setup.device:
            if remembers and not gradient:
                self.samples.carry(source, target, step, micro_batch)
            self._inbox.put(key, array_of(value))
            return
        head, link = partial(Value, run=self._setup.run, key=key, source=source), (source, target)
        ids = self.samples.ids(source, step, micro_batch) if remembers else None
        if isinstance(value, EncodedValue):
            packed = packed_payload(value.meta, value.payload)
            message = head(array=packed.array, payload=packed.payload, sections=packed.sections)
            self._send_encoded(peer, step, link, value, message if gradient else numbered(message, ids))
            return
        array = value
        choice = self._choice(phase, edge, gradient=gradient)
        codec = self._codec(choice)
        if codec is not None:
            codec = keyed(codec, self._setup.job.seed, step, micro_batch, str(edge.value), int(gradient))
        ends = self._setup.device, peer
        route = route_of(self._setup.plan, (str(edge.value), edge.source, edge.target), ends, gradient=gradient)
        pack = self.samples.announce(route, head, array, codec, ids) if remembers else partial(packed_value, head, array, codec)

        def make() -> Value:
            if codec is None or array.dtype.name not in FLOATING or not array.size:
                return pack()
            room = self._setup.budget.reserved(array.nbytes, f"encoding value {edge.value}")
            what = f"can't encode value {edge.value} for the link from {ends[0]} to {peer}"
            with room, CODECS.blame(choice.name, what, CodecError):
                made = self.gauge.encode(step, link, pack)
            self.gauge.compare(step, link, [array], lambda: [self.samples.arrived(route, ids, made)])
            return made

        self._outbox.post(peer, OutgoingMessage(make=make, step=step, pair=link, dense=array.nbytes))

    def _send_encoded(self, peer: str, step: int, link: Link, value: EncodedValue, message: Value) -> None:
        """Send the ``message`` of a value that the engine has encoded."""
        self.gauge.encoded(step, link, value.seconds)
        array, meta = value.array, value.meta

        def arrives() -> list[Array]:
            return [decode_array(packed_payload(meta, value.payload), meta.memory_nbytes)]

        def make() -> Value:
            if array is not None:
                self.gauge.compare(step, link, [array], arrives)
            return message

        frame = OutgoingMessage(make=make, step=step, pair=link, dense=meta.nbytes, seconds=value.seconds)
        self._outbox.post(peer, frame)

    def send_use(self, step: int, pair: tuple[int, int], peer: str, use: Use, array: Array) -> None:
        """Send the gradient of one use of a tied parameter in the first stage of ``pair`` to the replica at ``peer`` of the
        second one, which holds the parameter, too.

        It is never compressed.
        """
        key = UseKey(step=step, stage=pair[1], state=use.state, op=use.op)
        if peer == self._setup.device:
            self._inbox.put(key, array)
            return
        # the array stays as it is: the engine adds the uses up in new memory
        make = partial(packed_value, partial(Value, run=self._setup.run, key=key), array, None)
        self._outbox.post(peer, OutgoingMessage(make=make, step=step, pair=pair, dense=array.nbytes))

    def post(self, peer: str, message: Message) -> None:
        """Send a small message, ahead of values."""
        self._outbox.post(peer, OutgoingMessage(make=lambda: message, urgency=Urgency.CONTROL))

    def send_arrays(self, peer: str, arrays: Mapping[SideKey | StateKey, Array]) -> None:
        """Send arrays under keys of the caller's, uncompressed and in one frame; to this worker itself without a frame."""
        if peer == self._setup.device:
            for key, array in arrays.items():
                self._inbox.put(key, array)
            return
        head = partial(SideValues, run=self._setup.run, keys=tuple(arrays))
        self._outbox.post(peer, OutgoingMessage(make=lambda: pack_arrays(head, list(arrays.values()), None)))

    def receive(self, peer: str, value: Value) -> None:
        """Store a value in the inbox (transport thread).

        Raises:
            WireError: the value is larger than what the plan sends there, or does not fit its header.
            CodecError: its payload is malformed.
            MemoryExceeded: this process has no memory for it.
        """
        key = value.key
        if isinstance(key, ValueKey):
            self._check_size(key, value)
            array = self._planned(peer, key, value)
            if key.phase == Phase.TRAIN.value:
                self.spoilt.check(key.step, peer, array)
            self._inbox.put(key, array)
        else:  # checked against the largest array of the run
            self._inbox.put(key, self._decoded(value, value.sections))

    def receive_side(self, _: str, values: SideValues) -> None:
        """Store the values of an action in the inbox (transport thread). They are checked against the largest array of the run.

        Raises:
            WireError: there is not one array for each key, or one does not fit its header or is too large.
        """
        packed = [one for one in all_arrays(values, len(values.keys)) if one is not None]
        if len(packed) < len(values.keys):
            raise WireError(f"a 'values' message has {len(values.keys)} keys, and {len(packed)} arrays that are not missing")
        for key, array in zip(values.keys, [decode_array(one, self.largest, self._setup.budget) for one in packed], strict=True):
            self._inbox.put(key, array)

    def receive_batch(self, _: str, batch: Batch) -> None:
        """Store an input of a micro-batch in the inbox (transport thread).

        Raises:
            WireError: its step is not that of its key, it is larger than any value of the run, or does not fit its header.
        """
        key = batch.key
        if key.step != batch.step:
            raise WireError(f"a batch of step {batch.step} came under the key of step {key.step}")
        array = decode_array(PackedArray(batch.array, UNSET, batch.sections), self.largest)
        self._inbox.put((key.use, key.step, key.micro_batch, key.name), array)

    def _planned(self, peer: str, key: ValueKey, value: Value) -> Array:
        def decode() -> Array:
            if not self.samples.on or key.phase != Phase.TRAIN.value:
                return self._decoded(value, value.sections)
            edge, ends = (key.value, key.source, key.target), (peer, self._setup.device)
            route = route_of(self._setup.plan, edge, ends, gradient=key.gradient)
            sections, array = self.samples.receive(route, (key.step, key.micro_batch), value, self.largest)
            return self._decoded(value, sections) if array is None else array

        if value.payload is not UNSET or value.difference is not UNSET:
            link = (key.target, key.source) if key.gradient else (key.source, key.target)
            return self.gauge.decode(key.step, link, decode)
        return decode()

    def _decoded(self, value: Value, sections: Sections) -> Array:
        return decode_array(PackedArray(value.array, value.payload, sections), self.largest, self._setup.budget)

    def _check_size(self, key: ValueKey, value: Value) -> None:
        """Before memory is taken: a value has at most the elements that the plan's edge has."""
        limit, array = self._edges.get((key.value, key.source, key.target, key.gradient)), value.array
        if limit is None:
            raise WireError(f"the plan sends nothing under the key {key!r:.160}")
        if array.meta.nbytes > limit:
            raise WireError(
                f"oversized value {key.value!r:.80}: {array.dtype} {list(array.shape)} has more than the {limit} "
                "bytes of the plan"
            )

    def _choice(self, phase: Phase, edge: Edge, *, gradient: bool) -> CodecChoice:
        link = self._setup.plan.link.get((edge.source, edge.target)) if phase is Phase.TRAIN else None
        if link is None:
            return _DENSE
        return link.gradients if gradient else link.activations

    def _codec(self, choice: CodecChoice) -> Codec | None:
        if choice not in self._codecs:
            lossless = choice.name == "identity"
            self._codecs[choice] = None if lossless else get_codec(choice.name, **dict(choice.params))
        return self._codecs[choice]


@dataclass(frozen=True, slots=True)
class StepRoutes:
    """The keys and destinations of the values of one step (``ready_loop.Routes``)."""

    transfer: ValueTransfer
    phase: Phase
    step: int

    def key(self, micro_batch: int, edge: Edge, *, gradient: bool) -> ValueKey:
        """See ``Routes``."""
        return self.transfer.key(self.phase, self.step, micro_batch, edge, gradient=gradient)

    def send(self, micro_batch: int, results: Sequence[tuple[Edge, Array | EncodedValue]], *, gradient: bool) -> None:
        """See ``Routes``. Each value has a frame of its own: the next one is encoded while it travels."""
        for edge, value in results:
            self.transfer.send(self.phase, self.step, micro_batch, edge, value, gradient=gradient)


def _edge_bytes(setup: RunSetup) -> dict[tuple[str | int, ...], int]:
    """(value, source, target, whether it is the gradient) -> the most dense bytes that the plan sends there."""
    found: dict[tuple[str | int, ...], int] = {}
    for piece in setup.subgraphs:
        for edge in piece.requires_activations:
            place = (str(edge.value), edge.source, edge.target)
            found[*place, False] = edge.spec.nbytes
            if edge.gradient:
                found[*place, True] = edge.spec.nbytes * gradient_parts(piece, edge.value)
    return found
