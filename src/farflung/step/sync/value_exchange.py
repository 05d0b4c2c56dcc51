"""Exchanges of members' values one by one: each member sends its layers to all others of the group, through a codec or plain.

A value is encoded once, here: every member, this one too, counts what the message holds, whatever is written afterwards. Cost on
a link: all of what is exchanged, after the codec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from farflung.codecs import CODECS
from farflung.codecs.exchanged import shaped
from farflung.engines.base import Array
from farflung.errors import CodecError, WireError
from farflung.messages.arrays import decode_array, pack_arrays, pack_payloads, packed_arrays
from farflung.messages.data import LayerExchange
from farflung.messages.schema import UNSET
from farflung.plan.model import Plan
from farflung.plan.synchronization import strategy_of
from farflung.step.inbox import Inbox
from farflung.step.run_setup import RunSetup
from farflung.step.sync.stage_replica import StageReplica, ValuesUnderWay
from farflung.step.transfer.codec_gauge import CodecGauge
from farflung.step.transfer.outbox import Outbox, OutgoingMessage
from farflung.sync import codec_name
from farflung.sync.commands import Aggregate, Exchange, Mean
from farflung.transports.base import Urgency

__all__ = ["REPORTS", "Arrays", "ValueExchange"]

Arrays = list[Array]
#: What the tags of exchanges begin with that carry what members measured instead of parameters.
REPORTS = "report/"


class ValueExchange:
    """One worker's part. ``receive`` is called on transport threads, all else by the compute thread."""

    def __init__(self, setup: RunSetup, inbox: Inbox, outbox: Outbox, gauge: CodecGauge) -> None:
        self._setup, self._inbox, self._outbox, self._gauge = setup, inbox, outbox, gauge
        self._step = setup.first_step

    def begin_step(self, step: int) -> None:
        """What is sent from here on counts for ``step``."""
        self._step = step

    def begin(self, replica: StageReplica, command: Exchange, names: Sequence[str]) -> None:
        """Send what ``command`` names, if this member does; does not wait."""
        if replica.world.rank in command.group:
            replica.exchanges.values[command.tag] = ValuesUnderWay(names=list(names), group=command.sources)
        if replica.world.rank not in command.sources:
            replica.remembered.begun(command.tag, command.memory)
            return
        values = replica.read(command.source, names)
        live = command.source in ("parameters", "gradient")  # codecs, too, may hand out what they were given
        arrays = [np.array(values[name]) if live else np.ascontiguousarray(values[name]) for name in names]
        if command.codec == "identity":
            self._send_plain(replica, command.tag, command.group, arrays)
        else:
            self._send_coded(replica, command, arrays)

    def begin_report(self, replica: StageReplica, step: int, report: Array) -> None:
        """Send what was measured of layers to the whole group."""
        tag, group = f"{REPORTS}{step}", replica.world.group
        replica.exchanges.values[tag] = ValuesUnderWay(names=[replica.mark], group=group)
        self._send_plain(replica, tag, group, [report])

    def end(self, replica: StageReplica, command: Mean | Aggregate, names: Sequence[str]) -> list[dict[str, Array]]:
        """Wait for the values of each member of ``command.group``, in this order.

        Raises:
            WireError: a member sent other arrays than the parameters have.
        """
        replica.exchanges.values.pop(command.tag, None)
        found = []
        for rank in command.group:
            sent = self._inbox.take(self._key(replica, command.tag, rank))
            arrays = self._named(sent, names, command.tag, self._devices(replica)[rank])
            found.append(dict(replica.remembered.arrived(command.tag, rank, arrays)))
        replica.remembered.done(command.tag)
        return found

    def end_reports(self, replica: StageReplica) -> list[list[Array]]:
        """Wait for the reports of every exchange that ``begin_report`` began; one list of vectors by rank for each.

        Raises:
            WireError: a member reports on other layers than this one.
        """
        devices = self._devices(replica)
        tags = [tag for tag in replica.exchanges.values if tag.startswith(REPORTS)]
        found = []
        for tag in tags:
            del replica.exchanges.values[tag]
            arrays = [self._inbox.take(self._key(replica, tag, rank)) for rank in range(replica.world.members)]
            forms = [[(array.size, array.dtype) for array in row] for row in arrays]
            for device, form in zip(devices, forms, strict=True):
                if form != forms[replica.world.rank]:
                    text = f"{device} sent a report that does not fit the layers of stage {replica.stage}"
                    raise WireError(text).blaming(device)
            found.append([np.concatenate([array.reshape(-1) for array in row]) for row in arrays])
        return found

    def retained(self, replica: StageReplica, tag: str) -> dict[int, dict[str, Array]]:
        """What every member sent for ``tag``, for a checkpoint: rank -> parameter -> array. The values stay here; waits for them.

        Raises:
            WireError: a member sent other arrays than the parameters have.
            BaseException: what ended the run meanwhile.
        """
        under_way = replica.exchanges.values[tag]
        found = {}
        for rank in under_way.group:
            key = self._key(replica, tag, rank)
            self._inbox.wait_for(key, None)
            seen = self._inbox.seen([key])
            assert seen is not None
            found[rank] = self._named(seen[0], under_way.names, tag, self._devices(replica)[rank])
        return found

    def resume(self, replica: StageReplica, tag: str, retained: Mapping[int, Mapping[str, Array]], memory: str) -> None:
        """Continue an exchange that was under way when a checkpoint was written."""
        replica.remembered.begun(tag, memory)
        for rank, arrays in retained.items():
            self._inbox.put(self._key(replica, tag, rank), list(arrays.values()))
        replica.exchanges.values[tag] = ValuesUnderWay(names=list(next(iter(retained.values()))), group=tuple(sorted(retained)))

    def receive(self, peer: str, message: LayerExchange) -> None:
        """Store the layers of the member ``peer``.

        Raises:
            WireError: it is no member, or its arrays are larger than the stage's parameters.
            CodecError: a payload is malformed.
        """
        plan, stage = self._setup.plan, message.stage
        if stage not in self._setup.own_stages or peer not in plan.stages[stage].devices:
            raise WireError(f"{peer} is no replica of stage {stage}, of which one is here")
        assert plan.sync is not None
        names = [name for layer in plan.sync.layers[stage] for name in layer.parameters]
        least = _report_bytes(plan) * len(plan.sync.layers[stage])
        limits = [max(self._setup.graph.state[name].spec.nbytes, least) for name in names]
        if any(item is not None and item.payload is not UNSET for item in message.arrays):
            arrays = self._gauge.decode(self._step, (stage, stage), lambda: self._unpack(message, limits))
        else:
            arrays = self._unpack(message, limits)
        self._inbox.put(("sync", stage, message.tag, peer), arrays)

    def _send_plain(self, replica: StageReplica, tag: str, group: Sequence[int], arrays: Arrays) -> None:
        message = pack_arrays(self._head(replica, tag), arrays, None)
        self._post(replica, group, message, arrays, sum(array.nbytes for array in arrays))

    def _send_coded(self, replica: StageReplica, command: Exchange, arrays: Arrays) -> None:
        dense, pair = sum(array.nbytes for array in arrays), (replica.stage, replica.stage)
        named = dict(zip(replica.names(command.layers), arrays, strict=True))
        key = self._setup.job.seed, command.tag, replica.stage, replica.world.rank
        what = f"can't encode what replica {replica.world.rank} of stage {replica.stage} exchanges ({command.tag})"
        room = self._setup.budget.reserved(dense, "encoding what is exchanged")
        with room, CODECS.blame(codec_name(command.codec), what, CodecError):
            payloads = self._gauge.encode(self._step, pair, lambda: replica.remembered.encode(command, named, *key))
        message = pack_payloads(self._head(replica, command.tag), payloads)
        own = self._gauge.decode(self._step, pair, lambda: self._unpack(message, [dense] * len(payloads)))
        self._gauge.compare(self._step, pair, arrays, lambda: _arriving(replica, command.tag, named, own))
        self._post(replica, command.group, message, own, dense)

    def _unpack(self, message: LayerExchange, limits: Sequence[int]) -> Arrays:
        """Sizes are checked before memory is taken: not more arrays, and none larger, than the stage has parameters."""
        arrays = [array for array in packed_arrays(message, len(limits)) if array is not None]
        largest = sum(limits)  # sparse codecs send all as one
        if sum(packed.array.meta.memory_nbytes for packed in arrays) > largest:
            raise WireError(f"an exchange has at most {largest} bytes")
        return [decode_array(packed, largest, self._setup.budget) for packed in arrays]

    def _post(self, replica: StageReplica, group: Sequence[int], message: LayerExchange, own: Arrays, dense: int) -> None:
        """Send ``message`` to the others of ``group``; ``own``: what they will read in it, put where theirs will come."""
        devices, pair = self._devices(replica), (replica.stage, replica.stage)
        if replica.world.rank in group:
            self._inbox.put(self._key(replica, message.tag, replica.world.rank), own)
        for rank in group:
            if rank != replica.world.rank:
                outgoing = OutgoingMessage(
                    make=lambda: message, urgency=Urgency.BULK, step=self._step, pair=pair, dense=dense, waits=False
                )
                self._outbox.post(devices[rank], outgoing)

    def _head(self, replica: StageReplica, tag: str) -> partial[LayerExchange]:
        return partial(LayerExchange, run=self._setup.run, stage=replica.stage, tag=tag)

    def _key(self, replica: StageReplica, tag: str, rank: int) -> tuple[str, int, str, str]:
        return "sync", replica.stage, tag, self._devices(replica)[rank]

    def _devices(self, replica: StageReplica) -> tuple[str, ...]:
        return self._setup.plan.stages[replica.stage].devices

    def _named(self, sent: Arrays, names: Sequence[str], tag: str, device: str) -> dict[str, Array]:
        """What ``device`` sent for ``tag``, by parameter. A report is one array of any form."""
        report = tag.startswith(REPORTS)
        try:
            arrays = sent if report else self._by_parameter(sent, names)
        except CodecError as error:
            raise WireError(f"{device}: {error}").blaming(device) from error
        if len(arrays) != len(names):
            text = f"{device} sent {len(arrays)} arrays for {len(names)} parameters of exchange {tag!r}"
            raise WireError(text).blaming(device)
        for name, array in zip(names, arrays, strict=True):
            spec = self._setup.graph.state[name].spec
            if array.shape != spec.shape and not report:
                text = f"{device} sent {list(array.shape)} for {name!r}, which is {list(spec.shape)}"
                raise WireError(text).blaming(device)
        return dict(zip(names, arrays, strict=True))

    def _by_parameter(self, arrays: Arrays, names: Sequence[str]) -> Arrays:
        """``arrays`` parameter by parameter: sparse codecs send them as one."""
        if len(arrays) != 1:
            return arrays
        specs = [self._setup.graph.state[name].spec for name in names]
        return shaped(arrays, [np.broadcast_to(np.empty(1, np.float32), spec.shape) for spec in specs])


def _report_bytes(plan: Plan) -> int:
    """The bytes of a report for one layer: two times, or its squared norm and what each codec loses and sends."""
    rule = strategy_of(plan).traits.layer_codecs
    return 8 if rule is None else 8 * (1 + 2 * len(rule.options))


def _arriving(replica: StageReplica, tag: str, named: Mapping[str, Array], own: Arrays) -> Arrays:
    """What the others will have of ``named``, which ``replica`` encodes and decodes as ``own``."""
    parts = dict(zip(named, shaped(own, named.values()), strict=True))
    return list(replica.remembered.arrives(tag, parts).values())
