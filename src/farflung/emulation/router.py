"""The router's process: makes namespaces and TUN devices, forwards packets, and removes everything when its owner is gone.

``python -m farflung.emulation.router DESCRIPTOR``: a stream socket to the owner, who talks JSON lines. The first line is the
configuration; the answer brings the descriptors of the namespaces along. When the owner closes the socket or dies, every process
in the namespaces is killed and the router ends; with the descriptors gone, so are devices and namespaces.
"""

from __future__ import annotations

import array
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from farflung.clock import monotonic, sleep
from farflung.emulation.fabric import PREFIX, Fabric, FabricConfig
from farflung.emulation.kernel import make_namespace, namespace_id, open_tun, processes_in, raise_priority
from farflung.emulation.records import RECORDS, emulation_id
from farflung.errors import FarflungError

__all__ = ["Router", "address_of", "end_processes", "main"]

_LARGEST = 65546
_BATCH = 8
_LINE_LIMIT = 64 << 20


def address_of(index: int) -> str:
    """The address of a node by its index."""
    return ".".join(map(str, (*PREFIX, index + 1)))


def end_processes(namespaces: set[int], rounds: int = 50) -> None:
    """Kill every process in the namespaces, and those that they start meanwhile."""
    for _ in range(rounds):
        found = processes_in(namespaces)
        if not found:
            return
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        sleep(0.02)


class Router:
    """Namespaces, devices and the fabric between them, for one owner at the other end of ``control``."""

    def __init__(self, control: socket.socket, config: Mapping[str, Any]) -> None:
        self._control = control
        self._waiting = b""
        self._over = False
        # A socket can outlive its owner in the hands of a forked child; a process descriptor can't.
        self._owner = os.pidfd_open(int(config["owner"]))
        self._record = RECORDS / f"{emulation_id(int(config['owner']), os.getpid())}.json"
        count = int(config["nodes"])
        self.namespaces: list[int] = []
        self.devices: list[int] = []
        for index in range(count):
            self.namespaces.append(make_namespace())
            self.devices.append(open_tun(self.namespaces[-1], address_of(index), int(config["mtu"])))
        self.fabric = Fabric(FabricConfig(nodes=count, framing=int(config["framing"]), seed=int(config["seed"])))
        for change in config["changes"]:
            self.fabric.change(change)

    def ready(self) -> None:
        """Take the priority and tell the owner."""
        gc.collect()
        gc.freeze()
        gc.disable()  # nothing here makes cycles, and a collection would hold packets back
        line = json.dumps({"priority": raise_priority()}).encode() + b"\n"
        rights = array.array("i", self.namespaces)
        self._control.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def run(self) -> None:
        """Forward until the owner is gone."""
        devices = {device: index for index, device in enumerate(self.devices)}
        control = self._control.fileno()
        watched = [*self.devices, control, self._owner]
        fabric, now, read = self.fabric, monotonic, os.read
        while not self._over:
            wait = min(max(fabric.next_due - now(), 0.0), 1.0)
            # select: its timeout has microseconds, that of epoll milliseconds
            for ready in select.select(watched, (), (), wait)[0]:
                if ready == control:
                    self._listen()
                    continue
                if ready == self._owner:
                    self._over = True
                    break
                node = devices[ready]
                for _ in range(_BATCH):
                    try:
                        packet = read(ready, _LARGEST)
                    except BlockingIOError:
                        break
                    fabric.enter(now(), node, packet)
                if fabric.next_due <= now():
                    self._deliver()
            self._deliver()

    def _deliver(self) -> None:
        devices, write = self.devices, os.write
        for path, packet in self.fabric.release(monotonic()):
            try:
                write(devices[path.target], packet)
            except OSError:
                path.errors += 1

    def _listen(self) -> None:
        try:
            data = self._control.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data or len(self._waiting) > _LINE_LIMIT:
            self._over = True
            return
        *lines, self._waiting = (self._waiting + data).split(b"\n")
        for line in lines:
            try:
                self._control.sendall(json.dumps(self._answer(json.loads(line))).encode() + b"\n")
            except ConnectionError:
                self._over = True

    def _answer(self, request: Mapping[str, Any]) -> Any:
        now = monotonic()
        if "counters" in request:
            return self.fabric.counters(request["counters"], now)
        if "changes" in request:
            for change in request["changes"]:
                self.fabric.change(change)
        for due, change in request.get("timeline", ()):
            self.fabric.at(now + due, change)
        return {"strays": self.fabric.strays, "held_bytes": self.fabric.held}

    def close(self) -> None:
        """End what runs in the namespaces, let them go, and forget the record that a killed owner has left."""
        end_processes({namespace_id(namespace) for namespace in self.namespaces})
        self._record.unlink(missing_ok=True)
        for descriptor in (*self.devices, *self.namespaces):
            os.close(descriptor)


def main() -> None:
    """Serve the owner behind the descriptor of the command line."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner decides; without one the socket ends
    control = socket.socket(fileno=int(sys.argv[1]))
    first = control.makefile("rb").readline()
    try:
        router = Router(control, json.loads(first))
    except FarflungError as error:
        control.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        router.ready()
        router.run()
    finally:
        router.close()


if __name__ == "__main__":
    main()
