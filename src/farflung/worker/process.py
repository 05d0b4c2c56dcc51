"""A worker process: joins a broker, offers its device, and runs what it is given, one run at a time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from farflung.checkpoint import encode_shard
from farflung.engines.base import Array, DeviceReport, Engine
from farflung.errors import ConnectionLost, FarflungError, InputError, TrainingError
from farflung.messages.array_stream import pieces_of, read_arrays
from farflung.messages.fields import number, table, text, texts, whole
from farflung.messages.holdings import write_holdings
from farflung.messages.relays import read_pairs, read_relays
from farflung.messages.step_reports import write_report
from farflung.messages.versions import own_versions
from farflung.protocol.leases import LEASE
from farflung.telemetry.faults import fault_point
from farflung.telemetry.log_line import Detail
from farflung.telemetry.trace import ClockOffset, estimate_offset
from farflung.transports import TransportConfig
from farflung.transports.addresses import congestion_control, host_id
from farflung.transports.base import Arrival, Endpoint
from farflung.transports.rpc import RpcSession
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.units import Bytes, FlopsPerSecond, Seconds
from farflung.wire.frames import Frame, FrameLimits
from farflung.worker.device_measurement import load_engine, measure_device
from farflung.worker.helper import Helping
from farflung.worker.link_probe import probe_link
from farflung.worker.membership import Membership
from farflung.worker.options import WorkerOptions
from farflung.worker.retained_states import Live, Shelf
from farflung.worker.training_run import Work

__all__ = ["Worker"]

#: Reports that may wait for a slow broker before training does.
_REPORTS = 1024
_GOODBYE_SECONDS = 3.0
#: How often in the length of a lease a worker says that it lives.
_BEATS = 4
_END_SECONDS = 5.0
_MIN_FRAME = 64 << 20
#: Bytes of small frames that may be under way to a peer.
_SMALL = 256 << 10
#: Of one link.
_MAX_CONNECTIONS = 16


class Worker:
    """Serves one broker until ``stop``; ``say`` tells a person what goes on. Also the host of the run that it works on."""

    def __init__(
        self, membership: Membership, options: WorkerOptions, say: Callable[[str], None], before: Worker | None = None
    ) -> None:
        """Measure the device and begin to listen for peers.

        ``before``: this worker in its last session, whose broker went away: what that one held and had measured is this one's.

        Raises:
            InputError: the device is not there, or the address can't be listened at.
        """
        self._membership = membership
        self._options = options
        self._say = say
        self._engine: Engine = load_engine()
        self._current: Work | Helping | None = None
        #: The work that was taken up last, whether it has ended or not.
        self._last: Work | Helping | None = None if before is None else before._last
        #: What it holds of a run whose attempt has ended.
        self.shelf: Shelf = Shelf() if before is None else before.shelf
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._session: RpcSession | None = None
        self._uploading: RpcSession | None = None
        #: Why the broker said goodbye, once it has.
        self._dismissed = ""
        #: The broker takes it for gone, and it lives.
        self._given_up = False
        self._lease, self._heard, self._obeying = float(LEASE), 0.0, False
        self._wishes: dict[str, Any] = {}
        #: Told what the owner said elsewhere, through the broker.
        self.on_owner: Callable[[Mapping[str, Any]], None] = _ignore
        #: run -> the pairs that this worker relays for, and what it had carried before (the session's thread only)
        self._relays: dict[str, tuple[set[tuple[str, str]], dict[tuple[str, str], int]]] = {}
        #: Whether the broker has let it in.
        self.welcomed = False
        self._device: str = options.device if before is None else before._device
        #: What ``Engine.share`` compares with.
        self._reference: float = 0.0 if before is None else before._reference
        self._offer: dict[str, Any] = self._measure() if before is None else dict(before._offer)
        limits = FrameLimits(max_bytes=max(_MIN_FRAME, min(FrameLimits().max_bytes, int(self._offer["memory"]))))
        self._endpoint = TcpEndpoint(
            membership.credentials,
            self._on_frame,
            listen=options.listen,
            advertise=options.advertise or membership.own_host,
            config=TransportConfig(limits=limits, max_stripes=_MAX_CONNECTIONS, small=_SMALL),
            on_lost=self._on_lost,
        )
        self._endpoint.say = self.say
        self._endpoint.on_arrival = self._on_arrival

    def serve(self) -> None:
        """Open the session and obey it until ``stop``.

        Raises:
            ConnectionLost: the broker went away.
            InputError: the broker has a worker of this name already.
        """
        with self._lock:
            if self._leaving.is_set():
                return
            session = self._session = self._membership.client.session("session", depth=_REPORTS)
        fault_point("worker.before_join", device=self._membership.name)
        with suppress(ConnectionLost):  # if it is over already, iterating tells why
            offer = {**self._offer, "relay": self._options.relay and bool(self._endpoint.address)}
            offer["reliable"] = self._options.reliable
            hello = {"address": self._endpoint.address, "offer": offer, **self._wishes, **self._holds()}
            session.send(Frame("hello", hello))
        self._heard = time.monotonic()
        beats = threading.Thread(target=self._beat, args=(session,), name="beats", daemon=True)
        beats.start()
        try:
            for frame in session:
                self._obeying = True  # what comes meanwhile waits, and is no silence
                self._obey(frame)
                self._heard, self._obeying = time.monotonic(), False
        except ConnectionLost:
            if not (self._leaving.is_set() or self._dismissed):
                raise
        finally:
            self._end_work(ConnectionLost("the broker is gone"))
        if self._dismissed:
            raise ConnectionLost(
                f"the broker said goodbye: {self._dismissed}; when it is started again, join again with its ticket"
            )
        if not self._leaving.is_set():
            remedy = "" if self._given_up else "; start it again, then join again with its ticket"
            raise ConnectionLost(f"the broker ended the session{remedy}")

    def want(self, wishes: Mapping[str, Any]) -> None:
        """Tell the broker what this machine's owner wants from now on: ``paused``, ``parting``, ``memory`` (as ``MemberWants``),
        ``bandwidth`` (bytes per second; None: no cap)."""
        rate = wishes.get("bandwidth")
        self._endpoint.cap.rate = rate if isinstance(rate, (int, float)) else None
        with self._lock:
            self._wishes = dict(wishes)
            session = self._session
        if session is not None:
            with suppress(ConnectionLost):  # it is told with the next hello
                session.send(Frame("wants", self._wishes))

    def _beat(self, session: RpcSession) -> None:
        """Say that this worker lives, and give the session up when nothing was heard of the broker for the length of a lease."""
        looked = time.monotonic()
        while not session.over.wait(self._lease / _BEATS):
            now = time.monotonic()
            self._heard = max(self._heard, now - self._lease / 2) if now - looked > self._lease / 2 else self._heard
            looked = now  # a worker that was stopped itself has heard nobody: first it reads what came
            if self._obeying:
                self._heard = now
            if now - self._heard > self._lease:
                self._say(f"no message from the broker for {Seconds(now - self._heard)}")
                session.close()
                return
            with suppress(ConnectionLost):
                if not session.waiting:  # else there is more to say than that
                    session.send(Frame("beat"))

    def stop(self) -> None:
        """Leave, from any thread: say goodbye to the broker, and break off if it does not answer."""
        self._leaving.set()
        with self._lock:
            session = self._session
        if session is None:
            return
        timer = threading.Timer(_GOODBYE_SECONDS, session.close)
        timer.daemon = True
        timer.start()
        with suppress(ConnectionLost):
            session.end()

    def close(self) -> None:
        """End everything that this worker opened."""
        self._end_work(ConnectionLost("the worker is closing"))
        self._endpoint.close()
        self._membership.client.close()

    def _measure(self) -> dict[str, Any]:
        chosen, report = measure_device(self._engine, self._options.device, self._options.peak, self._say)
        self._device = chosen.name
        memory = self._options.memory
        if memory is None:
            free = psutil.virtual_memory().available if chosen.kind == "cpu" else report.free_bytes
            memory = 0.8 * free
        self._reference = report.reference_seconds
        return {
            "memory": memory,
            "kind": chosen.kind,
            "description": report.name,
            "host": host_id(),
            "processors": list(report.processors),
            **self._versions(),
            **_speed(report),
        }

    def _versions(self) -> dict[str, Any]:
        return {"versions": own_versions(self._engine.version())}

    def _measure_again(self, frame: Frame) -> None:
        """The broker plans a run for this worker, and has seen to it that no other worker of this machine measures now, or (
        ``together``) that all of them do.

        One that has got work meanwhile keeps the threads of that, and its older figures.
        """
        if self._current is not None:
            with suppress(ConnectionLost):
                self.report("measured", **_older(self._offer))
            return
        self._engine.set_threads(int(frame.header.get("threads", 1)))
        with suppress(ConnectionLost, InputError):  # the broker goes on with the older figures
            if frame.header.get("together") is True and self._reference:
                self.report("measured", **_older(self._offer), share=self._engine.share(self._device, self._reference))
                return
            report = self._engine.measure(self._device, self._options.peak)
            self._reference = report.reference_seconds
            self._offer |= _speed(report)
            self.report("measured", **_speed(report))

    def _obey(self, frame: Frame) -> None:
        match frame.kind:
            case "welcome":
                self._welcome(frame)
            case "goodbye":
                self._dismissed = str(frame.header.get("cause"))
            case "dismissed":
                self.stop()
            case "owner":
                self.on_owner(frame.header)
            case "fenced":
                self._given_up = True
                self._say(f"the broker has given this worker up: {frame.header.get('cause')}")
            case "measure" | "probe" | "reach":
                self._find_out(frame)
            case "relay" | "meet":
                self._about_relays(frame)
            case "prepare" | "help":
                self._take_up(frame)
            case "abort" | "lend" | "forget":
                self._let_go(frame)
            case _:
                self._obey_run(frame)

    def _find_out(self, frame: Frame) -> None:
        """What may take its time, and is answered with a report."""
        act = {"measure": self._measure_again, "probe": self._probe, "reach": self._reach}[frame.kind]
        threading.Thread(target=act, args=(frame,), name=frame.kind, daemon=True).start()

    def _obey_run(self, frame: Frame) -> None:
        work = self._current
        if work is None or work.run != frame.header.get("run"):
            return
        if frame.kind == "start" and work.attempt == frame.header.get("attempt"):
            work.begin()
        elif frame.kind in ("helper", "helper_gone"):
            if work.attempt == frame.header.get("attempt"):
                work.on_helper(frame)
        elif frame.kind == "stop":
            work.stop()
        elif frame.kind == "hand_over":
            work.hand_over()

    def _let_go(self, frame: Frame) -> None:
        """Part of a run is over: end it, give of what is left, or forget it."""
        if frame.kind == "abort":
            self._drop(frame)
        elif frame.kind == "lend":
            self._lend(frame)
        else:
            self.shelf.clear(text(frame.header, "run", limit=200))

    def _drop(self, frame: Frame) -> None:
        """The broker ends an attempt: let go of it, then tell what is still held of the run, if that is asked for."""
        run, attempt, keep = (
            text(frame.header, "run", limit=200),
            whole(frame.header, "attempt"),
            frame.header.get("keep") is True,
        )
        work = self._current
        if work is not None and work.run == run:
            cause = str(frame.header.get("cause"))
            self._say(f"run {run}: this attempt has ended: {cause}")
            work.abort(TrainingError(cause), told=True, keep=keep)
        if keep:
            threading.Thread(target=self._dropped, args=(run, attempt), name=f"drop-{run}", daemon=True).start()

    def _dropped(self, run: str, attempt: int) -> None:
        work = self._last
        told = []
        if work is not None and work.run == run:
            work.join(None)
            told = [write_report(report) for report in work.told()] if work.attempt == attempt else []
        with suppress(ConnectionLost):  # then nobody waits for it
            self.report("dropped", run=run, attempt=attempt, held=write_holdings(self.shelf.holdings(run)), told=told)

    def _holds(self) -> dict[str, Any]:
        """For the hello: what was kept of a run whose broker went away."""
        run, work = self.shelf.run, self._last
        if not run or work is None or work.run != run:
            return {}
        told = [write_report(report) for report in work.told()]
        return {"holds": {"run": run, "attempt": work.attempt, "held": write_holdings(self.shelf.holdings(run)), "told": told}}

    def _lend(self, frame: Frame) -> None:
        """Others go on with a run of which this worker holds something, and it has no part in their plan."""
        header = frame.header
        addresses = {str(peer): str(address) for peer, address in table(header, "addresses").items()}
        self.meet(addresses, read_relays(header))
        live = Live(table(header, "live"))
        self.shelf.settle(text(header, "run", limit=200), whole(header, "attempt", low=1), live, addresses)

    def _probe(self, frame: Frame) -> None:
        """Measure the way to a peer and tell the broker."""
        peer = str(frame.header.get("peer"))
        try:
            self.meet({peer: str(frame.header.get("address"))}, read_relays(frame.header))
            found = probe_link(self._endpoint, peer)
            relay = self._endpoint.statistics()[peer].relay
            answer: dict[str, Any] = {"alpha": found.alpha, "beta": found.beta, "spread": found.spread, "relay": relay}
        except FarflungError as error:
            answer = {"cause": str(error)}
        with suppress(ConnectionLost):  # then the broker is gone, and nobody waits for the answer
            self.report("probed", peer=peer, **answer)

    def _reach(self, frame: Frame) -> None:
        """Try to dial peers, all at once, and tell the broker which ones answered."""
        peers, found = table(frame.header, "peers"), {}
        seconds = min(number(frame.header, "seconds", low=0.1), 60.0)

        def one(peer: str, address: str) -> None:
            found[peer] = False
            with suppress(FarflungError):
                found[peer] = self._endpoint.reach(peer, address, seconds)

        tries = [threading.Thread(target=one, args=(peer, str(place)), daemon=True) for peer, place in peers.items()]
        for each in tries:
            each.start()
        for each in tries:
            each.join()
        with suppress(ConnectionLost):
            self.report("reached", question=frame.header.get("question"), found=found)

    def _about_relays(self, frame: Frame) -> None:
        """Through whom peers are reached; or relay for a run, or no more (then the broker is told what was carried)."""
        if frame.kind == "meet":
            addresses = table(frame.header, "addresses")
            self.meet({peer: str(address) for peer, address in addresses.items()}, read_relays(frame.header))
            return
        run, pairs = text(frame.header, "run", limit=200), read_pairs(frame.header)
        known, before = self._relays.setdefault(run, (set(), dict(self._endpoint.relayed())))
        self._endpoint.relay_for(run, pairs)
        known |= set(pairs)
        if pairs:
            self._say(Detail(f"run {run}: relays between {', '.join(' and '.join(pair) for pair in pairs)}"))
            return
        del self._relays[run]
        now = {way: count - before.get(way, 0) for way, count in self._endpoint.relayed().items()}
        mine = {way: count for way, count in now.items() if count and known & {way, way[::-1]}}
        carried = [[*way, count] for way, count in mine.items()]
        if carried:
            told = ", ".join(f"{Bytes(count)} from {a} to {b}" for (a, b), count in mine.items())
            self._say(Detail(f"run {run}: relayed {told}"))
        with suppress(ConnectionLost):
            self.report("relayed", run=run, carried=carried)

    def _welcome(self, frame: Frame) -> None:
        self.welcomed = True
        self._lease = number(frame.header, "lease", low=0.1)
        offered = f"{Bytes(self._offer['memory'])}, {FlopsPerSecond(self._offer['speed'])}"
        self._say(
            f"{self._membership.name}: joined the broker at {self._membership.client.address} with {self._offer['kind']} "
            f"({offered}); {f'peers reach it at {at}' if (at := self._endpoint.address) else 'it dials its peers'}"
        )
        congestion = congestion_control()
        if congestion:
            self._say(Detail(f"{self._membership.name}: {congestion}"))
        for warning in texts(frame.header, "warnings") if "warnings" in frame.header else ():
            self._say(f"{self._membership.name}: warning: {warning}")

    def _take_up(self, frame: Frame) -> None:
        self._end_work(TrainingError("replaced by another run"))
        try:
            work = Helping(self, frame) if frame.kind == "help" else Work(self, frame)
        except FarflungError as error:
            said = {key: frame.header.get(key) for key in ("run", "attempt")}
            self.report("failed", **said, cause=str(error), kind=type(error).__name__)
            return
        self.shelf.keep_only(work.run)
        with self._lock:
            self._current = self._last = work
        work.start()

    def _on_frame(self, peer: str, frame: Frame) -> None:
        if frame.kind == "want":
            self.shelf.lend(self._endpoint, peer, frame)
            return
        work = self._current
        if work is not None and work.name == frame.header.get("run"):
            work.on_frame(peer, frame)

    def _on_arrival(self, arrival: Arrival) -> None:
        work = self._current
        if work is not None:
            work.on_arrival(arrival)

    def _on_lost(self, peer: str, error: ConnectionLost, run: str) -> None:
        work = self._current
        if work is not None and work.name == run:  # else it is an old connection, e.g. of a peer that came back since
            work.on_lost(peer, error)

    def _end_work(self, error: FarflungError) -> None:
        with self._lock:
            work, self._current = self._current, None
        if work is not None:
            work.abort(error, told=True)
            self.break_off()
            work.join(_END_SECONDS if self._leaving.is_set() else 30.0)

    # -- for the work -------------------------------------------------------------------------------------------------

    def meet(self, addresses: Mapping[str, str], relays: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        """Be told where peers are (empty: they dial), and through which relays (name and address) some are reached."""
        for peer in dict.fromkeys([*addresses, *relays]):
            if peer in addresses:
                self._endpoint.connect(peer, addresses[peer])
            through = relays.get(peer, ())
            for relay, place in through:
                self._endpoint.connect(relay, place)
            self._endpoint.relay_through(peer, [relay for relay, _ in through])

    def part(self, peers: Sequence[str]) -> None:
        """A run with ``peers`` is over: relays are not kept busy."""
        self._endpoint.part(peers)

    def report(self, what: str, /, **fields: Any) -> None:
        """Tell the broker."""
        assert self._session is not None
        self._session.send(Frame(what, fields))

    def states(self, run: str, source: str, names: Sequence[str]) -> dict[str, Array]:
        """Tensors that the broker keeps."""
        request = Frame("states", {"run": run, "source": source, "names": list(names)})
        return read_arrays(self._membership.client.stream("states", request))

    def upload(self, run: str, place: Mapping[str, int], tensors: Mapping[str, Array]) -> None:
        """Send this worker's share of a checkpoint to the broker (``place``: ``step`` and ``committed``)."""
        session = self._uploading = self._membership.client.session("upload")
        try:
            for frame in pieces_of(encode_shard(tensors), "shard", {"run": run, **place}):
                session.send(frame)
            session.end()
        except ConnectionLost:
            pass  # the broker refused it: iterating tells why
        for _ in session:
            pass
        self._uploading = None

    def break_off(self) -> None:
        """End the upload that is under way, if there is one."""
        session = self._uploading
        if session is not None:
            session.close()

    def over(self, work: Work | Helping) -> None:
        """Forget a run that has ended."""
        with self._lock:
            if self._current is work:
                self._current = None

    @property
    def dismissed(self) -> str:
        """Why the broker said goodbye (empty: it did not)."""
        return self._dismissed

    @property
    def membership(self) -> Membership:
        """As whom it has joined."""
        return self._membership

    @property
    def device(self) -> str:
        """The device that computes, e.g. ``cuda:0``."""
        return self._device

    @property
    def data(self) -> Path:
        """The folder that relative data paths start from."""
        return self._options.data

    @property
    def any_path(self) -> bool:
        """Whether jobs may read outside of ``data``."""
        return self._options.any_path

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self._engine

    @property
    def endpoint(self) -> Endpoint:
        """The data plane."""
        return self._endpoint

    def clock_offset(self) -> ClockOffset:
        """How far the broker's clock is from this machine's (nothing is known where the broker does not tell)."""

        def ping() -> float:
            return number(self._membership.client.call("clock", Frame("clock"), timeout=5.0).header, "now")

        try:
            return estimate_offset(ping, time.monotonic)
        except FarflungError:
            return ClockOffset(error=math.inf)

    def say(self, text: str) -> None:
        """Tell the person at this machine."""
        self._say(text)


def _ignore(header: Mapping[str, Any]) -> None:
    del header


def _older(offer: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured before."""
    return {key: offer[key] for key in ("speed", "factor", "overhead", "convolution")}


def _speed(report: DeviceReport) -> dict[str, float]:
    return {
        "speed": report.flops_per_second,
        "factor": report.speed_factor,
        "overhead": report.launch_seconds,
        "convolution": report.convolution,
    }
