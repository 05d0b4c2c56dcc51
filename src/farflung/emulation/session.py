"""An emulation as a program sees it: a context that gives nodes, changes links, and counts what passes.

::

    with Emulation(Network.from_toml("machines.toml")) as emulation:
        server = emulation["attic-pc"].start(["python3", "-m", "http.server"])
        with emulation["spot-0"].inside():          # this thread's new sockets and processes belong to the node
            connection = socket.create_connection((emulation["attic-pc"].address, 8000))
        emulation.change({"between": ["home", "cloud"], "bandwidth": "8 Mbit/s"})
        print(emulation.counters())
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from farflung.child_processes import end_all
from farflung.cluster import Network, Topology
from farflung.cluster.table_reader import Names, TableReader
from farflung.cluster.timeline import read_changes
from farflung.emulation.changes import first_changes, lower
from farflung.emulation.fabric import MAX_NODES
from farflung.emulation.kernel import inside, namespace_id, require_root
from farflung.emulation.records import MARK, Record, emulation_id, process_start, sweep
from farflung.emulation.router import address_of, end_processes
from farflung.errors import EmulationError, InputError

__all__ = ["Emulation", "EmulationOptions", "Node", "PairCounters"]

_PATIENCE = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulationOptions:
    """``mtu``: bytes of an IP packet. ``framing``: bytes that each packet costs beyond its IP bytes (Ethernet: 14). ``seed``: of
    loss, jitter and damage. ``grace``: seconds that programs in the nodes have to end after SIGTERM."""

    mtu: int = 1500
    framing: int = 14
    seed: int = 0
    grace: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCounters:
    """What has passed from one node to another so far.

    ``bytes``, ``packets``: delivered, IP bytes of packets on the wire. ``lost``: by the link's loss. ``dropped``: by full queues.
    ``refused``: by a link that is down, a partition or a NAT. ``damaged``: delivered with a turned bit. ``errors``: packets that
    the receiving kernel did not take. ``held_bytes``: under way now. ``queued_seconds``: how long a packet that comes now waits
    for the pair's bandwidth.
    """

    source: str
    target: str
    bytes: int
    packets: int
    lost: int
    dropped: int
    refused: int
    damaged: int
    errors: int
    held_bytes: int
    queued_seconds: float


class Node:
    """One machine of an emulation: a network namespace with the device ``wan0``."""

    def __init__(self, emulation: Emulation, name: str, index: int) -> None:
        self._emulation = emulation
        self.name = name
        self.index = index
        self.address = address_of(index)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread is in the node for the time of the block: sockets and processes that it makes belong to the node."""
        with inside(self._emulation.namespace(self.index)):
            yield

    @property
    def _variables(self) -> dict[str, str]:
        """What programs in the node find in their environment: FARFLUNG_NODE, _INDEX, _ADDRESS, _NODES, _EMULATION."""
        others = ",".join(f"{node.name}={node.address}" for node in self._emulation.nodes.values())
        own = {"FARFLUNG_NODE": self.name, "FARFLUNG_INDEX": str(self.index), "FARFLUNG_ADDRESS": self.address}
        return {**own, "FARFLUNG_NODES": others, MARK: self._emulation.id}

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program in the node; ``options`` are those of ``subprocess.Popen``. It ends with the emulation at the latest.

        Raises:
            EmulationError: the program can't be started.
        """
        environment = {**os.environ, **(options.pop("env", None) or {}), **self._variables}
        with self.inside():
            try:
                process = subprocess.Popen(list(command), env=environment, **options)  # noqa: S603 - the caller's
            except OSError as error:
                raise EmulationError(
                    f"cannot start {command[0]!r} in node {self.name!r}: {error.strerror}; check the path"
                ) from None
        self._emulation.keep(process)
        return process


class Emulation:
    """A network in a box: enter it to start it, leave it to remove all that it made (processes in the nodes included).

    One process, the router, forwards all packets with real-time priority. Needs Linux and root.

    Raises (on entering):
        EmulationError: no root, no TUN device, or the kernel refuses.
        InputError: too many devices.
    """

    def __init__(self, network: Network | Topology, options: EmulationOptions | None = None) -> None:
        self.network = network if isinstance(network, Network) else Network(topology=network)
        self.options = options or EmulationOptions()
        names = self.network.topology.names
        if len(names) > MAX_NODES:
            raise InputError(f"an emulation has at most {MAX_NODES} nodes, the topology has {len(names)}; choose fewer devices")
        self.nodes: Mapping[str, Node] = {name: Node(self, name, i) for i, name in enumerate(names)}
        self.id = ""
        #: Which priority the router got, in words.
        self.priority = ""
        self._lock = threading.Lock()
        self._namespaces: list[int] = []
        self._started: list[subprocess.Popen[Any]] = []
        self._control: socket.socket | None = None
        self._lines: Any = None
        self._router: subprocess.Popen[bytes] | None = None
        self._record: Path | None = None

    def __getitem__(self, name: str) -> Node:
        try:
            return self.nodes[name]
        except KeyError:
            raise InputError(f"the emulation has no node {name!r}; known are {', '.join(list(self.nodes)[:16])}") from None

    def __enter__(self) -> Self:
        require_root()
        sweep()
        with ExitStack() as undo:
            undo.callback(self.close)
            self._start()
            undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self) -> None:
        own, its = socket.socketpair()
        self._control = own
        with its:
            command = [sys.executable, "-m", "farflung.emulation.router", str(its.fileno())]
            self._router = subprocess.Popen(  # noqa: S603 - this very interpreter and module
                command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            )
        config = {
            "nodes": len(self.nodes),
            "owner": os.getpid(),
            "mtu": self.options.mtu,
            "framing": self.options.framing,
            "seed": self.options.seed,
            "changes": first_changes(self.network),
        }
        own.settimeout(_PATIENCE)
        self._lines = own.makefile("rb")
        self._send(config)
        space = socket.CMSG_SPACE(MAX_NODES * array.array("i").itemsize)
        try:
            data, ancillary, _, _ = own.recvmsg(4096, space, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise EmulationError(f"the emulation's router does not answer ({error}); see what it printed") from None
        for level, kind, body in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._namespaces = list(array.array("i", body[: len(body) // 4 * 4]))
        answer = json.loads(data or '{"error": "the emulation\'s router ended at its start; see what it printed"}')
        if "error" in answer:
            raise EmulationError(str(answer["error"]))
        self.priority = str(answer["priority"])
        self._keep_record()

    def _keep_record(self) -> None:
        assert self._router is not None
        self.id = emulation_id(os.getpid(), self._router.pid)
        self._record = Record(
            id=self.id,
            topology=self.network.topology.name,
            owner=(os.getpid(), process_start(os.getpid()) or 0),
            router=(self._router.pid, process_start(self._router.pid) or 0),
            namespaces=tuple(namespace_id(descriptor) for descriptor in self._namespaces),
            nodes=tuple(self.nodes),
        ).write()

    def namespace(self, index: int) -> int:
        """The descriptor of a node's namespace.

        Raises:
            EmulationError: the emulation is not running.
        """
        if not self._namespaces:
            raise EmulationError("the emulation is not running; use its nodes inside `with Emulation(...)`")
        return self._namespaces[index]

    def keep(self, process: subprocess.Popen[Any]) -> None:
        """End a process with the emulation."""
        self._started.append(process)

    @property
    def router(self) -> int:
        """The router's process id (0: not running)."""
        return self._router.pid if self._router is not None else 0

    def change(self, table: Mapping[str, Any]) -> None:
        """Change links, caps, NAT or partitions now; ``table`` has the keys of a ``[[change]]`` without ``at``.

        For instance ``{"between": ["home", "cloud"], "bandwidth": "8 Mbit/s"}``, ``{"device": "pc", "uplink": "5 Mbit/s"}``,
        ``{"partition": [["home"], ["cloud"]]}``, ``{"heal": True}``, ``{"reset": True}``.

        Raises:
            InputError: the table is wrong.
            EmulationError: the emulation is not running.
        """
        reader = TableReader("change")
        topology = self.network.topology
        names = Names(reader, topology.names, [device.region for device in topology.devices])
        (change,) = read_changes(reader, [{**table, "at": 0}], names.find, topology.names)
        self._ask({"changes": lower(change, len(self.nodes))})

    def play(self) -> None:
        """Begin the network's timeline: its changes are made so much later as they say."""
        events = [(float(change.at), lowered) for change in self.network.timeline for lowered in lower(change, len(self.nodes))]
        self._ask({"timeline": events})

    def counters(self) -> list[PairCounters]:
        """The counters of all pairs that have seen anything.

        Raises:
            EmulationError: the emulation is not running.
        """
        names = list(self.nodes)
        # One question for each node, so that no answer holds packets back for long.
        rows = [row for index in range(len(names)) for row in self._ask({"counters": index})]
        return [PairCounters(**{**row, "source": names[row["source"]], "target": names[row["target"]]}) for row in rows]

    def _send(self, line: object) -> None:
        assert self._control is not None
        self._control.sendall(json.dumps(line).encode() + b"\n")

    def _ask(self, request: object) -> Any:
        if self._lines is None:
            raise EmulationError("the emulation is not running; use it inside `with Emulation(...)`")
        with self._lock:
            try:
                self._send(request)
                line = self._lines.readline()
            except OSError:
                line = b""
        if not line:
            raise EmulationError("the emulation's router has ended, so its network is gone; start the emulation again")
        return json.loads(line)

    def close(self) -> None:
        """End the programs in the nodes and remove the network. Does nothing the second time."""
        try:
            self._end_programs()
        finally:  # interrupted or not, they have ended
            self._remove()

    def _remove(self) -> None:
        if self._namespaces:
            end_processes({namespace_id(descriptor) for descriptor in self._namespaces})
        if self._lines is not None:
            self._lines.close()
        if self._control is not None:
            self._control.close()
        if self._router is not None:
            try:
                self._router.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self._router.kill()
                self._router.wait()
        for descriptor in self._namespaces:
            os.close(descriptor)
        self._namespaces, self._lines, self._control, self._router = [], None, None, None
        if self._record is not None:
            self._record.unlink(missing_ok=True)
            self._record = None

    def _end_programs(self) -> None:
        started, self._started = self._started, []
        end_all(started, self.options.grace)
