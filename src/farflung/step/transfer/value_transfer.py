"""Value transfer: key, codec and destination of every value that moves between stages.

Values between stages of one device go straight to the inbox, as they are. Between devices they are encoded by the link's codec
on the sender's thread and decoded on the receiver's transport thread. Everything that must be exact (verdicts, uses of tied
parameters, norms, evaluation) always travels uncompressed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from farflung.codecs import CODECS, get_codec, keyed
from farflung.codecs.base import Codec
from farflung.engines.base import Array, gradient_parts
from farflung.errors import CodecError, WireError
from farflung.graph.cut import Edge
from farflung.graph.ir import Use
from farflung.messages.arrays import FLOATING, decode_array, encode_array
from farflung.messages.fields import whole
from farflung.messages.schema import Message
from farflung.messages.wire_form import encode
from farflung.plan.link_memory import way_of
from farflung.plan.model import CodecChoice
from farflung.step.inbox import Inbox
from farflung.step.run_setup import Phase, RunSetup
from farflung.step.transfer.codec_gauge import CodecGauge
from farflung.step.transfer.outbox import Outbox, OutgoingFrame
from farflung.step.transfer.sample_cache import SampleCache
from farflung.transports.base import Urgency
from farflung.wire.arrays import DTYPES, ArrayMeta
from farflung.wire.frames import Frame

__all__ = ["StepRoutes", "ValueTransfer"]

_MAX_KEY = 12
_DENSE = CodecChoice()
#: What the keys of a frame with an array begin with.
_PLACES = {"value": ("value", "use", "side"), "data": ("data", "eval")}


class ValueTransfer:
    """Moves the values of one run for one worker."""

    def __init__(self, setup: RunSetup, inbox: Inbox, outbox: Outbox) -> None:
        self._setup = setup
        self._inbox = inbox
        self._outbox = outbox
        self._codecs: dict[CodecChoice, Codec | None] = {}
        self._edges = _edge_bytes(setup)
        self._largest = max(_largest(setup), *self._edges.values(), 0)
        #: What both ends of a link cached of samples that come again.
        self.samples = SampleCache(setup, inbox.poke)
        #: Time and error of codecs.
        self.gauge = CodecGauge()

    def key(self, phase: Phase, step: int, micro_batch: int, edge: Edge, *, gradient: bool) -> tuple[str | int, ...]:
        """Under which key the value (or its gradient) of ``edge`` waits in the inbox."""
        return ("value", phase.value, step, micro_batch, str(edge.value), edge.source, edge.target, gradient)

    def send(self, phase: Phase, step: int, micro_batch: int, edge: Edge, array: Array, *, gradient: bool) -> None:
        """Send the value of ``edge`` to its reading stage, or its gradient back to the stage that made it."""
        key = self.key(phase, step, micro_batch, edge, gradient=gradient)
        source, target = (edge.target, edge.source) if gradient else (edge.source, edge.target)
        peer = self._setup.places[target][micro_batch] if phase in (Phase.TRAIN, Phase.PROBE) else self._setup.primary(target)
        remembers = self.samples.on and phase is Phase.TRAIN
        if peer == self._setup.device:
            if remembers and not gradient:
                self.samples.carry(source, target, step, micro_batch)
            self._inbox.put(key, array)
            return
        choice = self._choice(phase, edge, gradient=gradient)
        codec = self._codec(choice)
        if codec is not None:
            codec = keyed(codec, self._setup.job.seed, step, micro_batch, str(edge.value), int(gradient))
        head = {"run": self._setup.run, "key": list(key), "from": source}
        ids = self.samples.ids(source, step, micro_batch) if remembers else None
        ends = self._setup.device, peer
        way = way_of(self._setup.plan, (str(edge.value), edge.source, edge.target), ends, gradient=gradient)
        encode = self.samples.announce(way, array, codec, ids) if remembers else partial(encode_array, array, codec)
        link = source, target

        def make() -> Frame:
            if codec is None or array.dtype.name not in FLOATING or not array.size:
                header, sections = encode()
            else:
                with CODECS.blame(
                    choice.name, f"can't encode value {edge.value} for the link from {ends[0]} to {peer}", CodecError
                ):
                    header, sections = made = self.gauge.encode(step, link, encode)
                self.gauge.compare(step, link, [array], lambda: [self.samples.arrived(way, ids, made)])
            return Frame("value", head | header, sections)

        self._outbox.post(peer, OutgoingFrame(make=make, step=step, pair=(source, target), dense=array.nbytes))

    def send_use(self, step: int, pair: tuple[int, int], peer: str, use: Use, array: Array) -> None:
        """Send the gradient of one use of a tied parameter in the first stage of ``pair`` to the replica at ``peer`` of the
        second one, which holds the parameter, too.

        It is never compressed.
        """
        key = ("use", step, pair[1], use.state, use.op)
        if peer == self._setup.device:
            self._inbox.put(key, array)
            return

        def make() -> Frame:  # the array stays as it is: the engine adds the uses up in new memory
            header, sections = encode_array(array, None)
            return Frame("value", {"run": self._setup.run, "key": list(key)} | header, sections)

        self._outbox.post(peer, OutgoingFrame(make=make, step=step, pair=pair, dense=array.nbytes))

    def post(self, peer: str, message: Message) -> None:
        """Send a small message, ahead of values."""
        self._outbox.post(peer, OutgoingFrame(make=lambda: encode(message), urgency=Urgency.CONTROL))

    def send_array(self, peer: str, key: tuple[str | int, ...], array: Array) -> None:
        """Send an array under a key of the caller's, uncompressed; to this worker itself without a frame."""
        if peer == self._setup.device:
            self._inbox.put(key, array)
            return

        def make() -> Frame:
            header, sections = encode_array(array, None)
            return Frame("value", {"run": self._setup.run, "key": list(key)} | header, sections)

        self._outbox.post(peer, OutgoingFrame(make=make))

    def receive(self, peer: str, frame: Frame) -> None:
        """Decode a frame with an array and store the array in the inbox (transport thread).

        Raises:
            WireError: its header is malformed, or the value is larger than what the plan sends there.
            CodecError: its payload is malformed.
        """
        key = _key(frame)
        self._check_size(key, frame.header)
        self._inbox.put(key, self._array(peer, key, frame))

    def _array(self, peer: str, key: tuple[str | int, ...], frame: Frame) -> Array:
        if key[0] != "value":
            return decode_array(frame.header, frame.sections, self._largest)
        _, phase, step, micro_batch, value, source, target, gradient = key
        if not (isinstance(step, int) and isinstance(micro_batch, int)):
            raise WireError(f"a value's step and micro-batch are whole numbers, got {step!r:.40} and {micro_batch!r:.40}")
        edge = str(value), int(source), int(target)  # one of the plan's, see ``_check_size``

        def decode() -> Array:
            if not self.samples.on or phase != Phase.TRAIN.value:
                return decode_array(frame.header, frame.sections, self._largest)
            way = way_of(self._setup.plan, edge, (peer, self._setup.device), gradient=bool(gradient))
            sections, array = self.samples.receive(way, (step, micro_batch), frame, self._largest)
            return decode_array(frame.header, sections, self._largest) if array is None else array

        if "payload" in frame.header or "difference" in frame.header:
            return self.gauge.decode(step, (edge[2], edge[1]) if gradient else (edge[1], edge[2]), decode)
        return decode()

    def _check_size(self, key: tuple[str | int, ...], header: Mapping[str, Any]) -> None:
        """Before memory is taken: a value has at most the elements that the plan's edge has."""
        if key[0] != "value":
            return  # ``decode_array`` checks against the largest array of the run
        limit = self._edges.get(key[4:])
        meta = ArrayMeta.from_header(header.get("array"))
        if limit is None:
            raise WireError(f"the plan sends nothing under the key {list(key)!r:.160}")
        if meta.numel * DTYPES[meta.dtype].itemsize > limit:
            raise WireError(
                f"oversized value {key[4]!r:.80}: {meta.dtype} {list(meta.shape)} has more than the {limit} bytes of the plan"
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

    def key(self, micro_batch: int, edge: Edge, *, gradient: bool) -> tuple[str | int, ...]:
        """See ``Routes``."""
        return self.transfer.key(self.phase, self.step, micro_batch, edge, gradient=gradient)

    def send(self, micro_batch: int, edge: Edge, array: Array, *, gradient: bool) -> None:
        """See ``Routes``."""
        self.transfer.send(self.phase, self.step, micro_batch, edge, array, gradient=gradient)


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


def _largest(setup: RunSetup) -> int:
    """Bytes of the largest tensor of the run's graphs: what a value (or a view with gaps into its storage) can need."""
    graphs = [*setup.graphs.values(), *(graph for graph in (setup.eval_graph, setup.generate_graph) if graph is not None)]
    values = (spec.nbytes for graph in graphs for op in graph.ops for spec in op.outputs)
    states = (state.spec.nbytes for graph in graphs for state in graph.states)
    return max(0, *values, *states)


def _key(frame: Frame) -> tuple[str | int, ...]:
    """The key of a frame with an array; its first part must be one that the frame's kind may fill."""
    key = frame.header.get("key")
    if not isinstance(key, list) or not 0 < len(key) <= _MAX_KEY or not all(isinstance(part, (str, int)) for part in key):
        raise WireError(f"a value's key must be a list of texts and whole numbers, got {key!r:.80}")
    known = _PLACES[frame.kind]
    if key[0] not in known:
        raise WireError(f"a {frame.kind} has no place under the key {key!r:.80}: it begins with {', '.join(known)}")
    if frame.kind == "data" and (len(key) != 4 or key[1] != whole(frame.header, "step")):
        raise WireError(f"data have the key data (or eval), step, micro-batch and placeholder, got {key!r:.80}")
    return tuple(key)
