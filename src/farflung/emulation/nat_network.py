"""Machines behind real NATs, on one machine: network namespaces, and the kernel's own address translation (Linux, root).

::

    203.0.113.0/24   the internet: a switch
      .1             the broker
      .10 + i        device i itself (no NAT), its router, or its carrier's router
    100.64.i.0/24    between the carrier's router and the home router of device i (carrier-grade NAT only)
    10.i.0.0/24      device i (.2) behind its router (.1)
    2600:ff::/64     devices with IPv6, which no router translates

Each router drops what it does not expect, as home routers do. The network needs ``ip``, ``tc`` and ``nft`` (packages iproute2 and
nftables).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from farflung.emulation.kernel import inside, make_namespace, require_root
from farflung.errors import EmulationError
from farflung.nat_types import NatType
from farflung.thread_group import ThreadGroup
from farflung.transports.connection_gate import ConnectionGate
from farflung.transports.punching.observer import AddressObserver

__all__ = ["BROKER", "NatNetwork", "missing_programs", "router_rules"]

_INTERNET = "203.0.113"
#: The broker's address.
BROKER = f"{_INTERNET}.1"
_PROGRAMS = ("ip", "nft", "tc")
_MOST_DEVICES = 200
_SYSTEM_FOLDERS = "/usr/sbin:/sbin:/usr/bin:/bin"

#: Routers drop what they did not ask for. The sets hold what the device has used lately.
_RULES = """
table ip farflung {{
  set used {{ type inet_service; flags dynamic,timeout; timeout 5m; }}
  set cut {{ type ipv4_addr; }}
  set contacted {{ type ipv4_addr . inet_service; flags dynamic,timeout; timeout 5m; }}
  chain input {{ type filter hook input priority 0; policy drop; ct state established,related accept; }}
  chain forward {{
    type filter hook forward priority 0; policy drop;
    ip daddr @cut drop
    iifname "lan0" update @used {{ tcp sport }} update @contacted {{ ip daddr . tcp sport }} accept
    ct state established,related accept
    ct status dnat accept
  }}
  chain before {{ type nat hook prerouting priority -100; {admit} }}
  chain after {{ type nat hook postrouting priority 100; oifname "wan0" {translate}; }}
}}
"""
_ADMIT = {
    NatType.FULL_CONE: 'iifname "wan0" tcp dport @used dnat to {inner};',
    NatType.RESTRICTED: 'iifname "wan0" ip saddr . tcp dport @contacted dnat to {inner};',
}


def missing_programs() -> list[str]:
    """Return the programs that this machine lacks for a ``NatNetwork``."""
    return [name for name in _PROGRAMS if shutil.which(name, path=_SYSTEM_FOLDERS) is None]


def router_rules(nat: NatType, inner: str) -> str:
    """Return the nftables rules of a router of type ``nat`` in front of the device at ``inner``."""
    translate = "masquerade fully-random" if nat is NatType.SYMMETRIC else "masquerade"
    return _RULES.format(admit=_ADMIT.get(nat, "").format(inner=inner), translate=translate)


class NatNetwork:
    """A context. ``inside`` enters the namespace of a device, or of the broker (an empty name)."""

    def __init__(self, devices: Mapping[str, NatType], ipv6: Collection[str] = (), internet: str = _INTERNET) -> None:
        """``devices``: name -> what stands between it and the internet. ``ipv6``: those with a global IPv6 address as well.

        ``internet``: the first three numbers of all outer addresses.

        Raises:
            EmulationError: this machine can't make it.
        """
        require_root()
        if missing := missing_programs():
            raise EmulationError(f"a network with NATs needs {', '.join(missing)}; install the packages iproute2 and nftables")
        if len(devices) > _MOST_DEVICES:
            raise EmulationError(f"a network with NATs has at most {_MOST_DEVICES} devices, got {len(devices)}; use fewer")
        self._devices, self._ipv6 = dict(devices), ipv6
        self._stack = ExitStack()
        self._spaces: dict[str, int] = {}
        #: The home router of each device that has one.
        self._routers: dict[str, int] = {}
        #: Device -> the address from which others see it.
        self.outer = {name: f"{internet}.{10 + index}" for index, name in enumerate(devices)}
        #: The broker's address.
        self.broker = f"{internet}.1"

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._stack.close)
            switch = self._space()
            _run(switch, "ip link add switch type bridge")
            _run(switch, "ip link set switch up")
            self._spaces[""] = self._space()
            self._attach(switch, self._spaces[""], self.broker, 0)
            for index, (name, nat) in enumerate(self._devices.items(), start=1):
                self._add(switch, index, name, nat)
            undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """This thread, and threads and processes that it begins, are in the device ``name`` for the time of the block."""
        with inside(self._spaces[name]):
            yield

    @contextmanager
    def observers(self, *ports: int) -> Iterator[None]:
        """Let the broker's ``ports`` tell callers their address and the next port (``transports.punching``) during the block."""
        following = dict(zip(ports, (*ports[1:], ports[0]), strict=True))
        threads = ThreadGroup()
        with ExitStack() as stack:
            observer = AddressObserver(lambda token, place: None, following.__getitem__)
            stack.callback(observer.close)
            stack.callback(threads.join)
            with self.inside(""):
                for port in ports:
                    server = socket.create_server((self.broker, port))
                    gate = ConnectionGate(server, lambda sock, place: sock.close(), tls=True, observe=observer.serve)
                    stack.callback(gate.close)
                    threads.spawn("nat-observer", gate.run)
            yield

    @contextmanager
    def inside_router(self, name: str) -> Iterator[None]:
        """The same in the home router of the device ``name``. Its devices are ``lan0`` and ``wan0``."""
        with inside(self._routers[name]):
            yield

    def cut(self, name: str, others: Iterable[str]) -> None:
        """Let the router of the device ``name`` drop what goes to ``others`` (none: nothing any more)."""
        chosen = " ".join(f"add element ip farflung cut {{ {self.outer[other]} }};" for other in others)
        _run(self._routers[name], "nft -f -", f"flush set ip farflung cut; {chosen}\n")

    def limit(self, name: str, mbit: int) -> None:
        """Let the device ``name`` send at most ``mbit`` Mbit/s."""
        _run(self._spaces[name], f"tc qdisc replace dev wan0 root tbf rate {mbit}mbit burst 256kb latency 100ms")

    def _add(self, switch: int, index: int, name: str, nat: NatType) -> None:
        device = self._spaces[name] = self._space()
        if name in self._ipv6:
            _run(switch, f"ip link add six{index} type veth peer name six0 netns {_path(device)}")
            _run(switch, f"ip link set six{index} master switch up")
            _run(device, "ip link set six0 up")
            _run(device, f"ip addr add 2600:ff::{index}/64 dev six0 nodad")
            _run(device, "ip -6 route add default dev six0")
        outer, inner = self.outer[name], f"10.{index}.0.2"
        if nat is NatType.NONE:
            self._attach(switch, device, outer, index)
            return
        router = self._routers[name] = self._space()
        if nat is NatType.CARRIER_GRADE:
            carrier = self._space()
            self._attach(switch, carrier, outer, index)
            self._join(carrier, router, f"100.64.{index}")
            _rules(carrier, router_rules(nat, f"100.64.{index}.2"))
        else:
            self._attach(switch, router, outer, index)
        self._join(router, device, f"10.{index}.0")
        _rules(router, router_rules(nat, inner))

    def _space(self) -> int:
        made = make_namespace()
        self._stack.callback(os.close, made)
        return made

    def _attach(self, switch: int, space: int, address: str, index: int) -> None:
        _run(switch, f"ip link add port{index} type veth peer name wan0 netns {_path(space)}")
        _run(switch, f"ip link set port{index} master switch up")
        _run(space, f"ip addr add {address}/24 dev wan0")
        _run(space, "ip link set wan0 up")

    def _join(self, router: int, device: int, network: str) -> None:
        """Put ``device`` behind ``router``."""
        _run(router, f"ip link add lan0 type veth peer name wan0 netns {_path(device)}")
        _run(router, f"ip addr add {network}.1/24 dev lan0")
        _run(router, "ip link set lan0 up")
        _run(device, f"ip addr add {network}.2/24 dev wan0")
        _run(device, "ip link set wan0 up")
        _run(device, f"ip route add default via {network}.1")


def _path(space: int) -> str:
    return f"/proc/{os.getpid()}/fd/{space}"


def _rules(space: int, rules: str) -> None:
    """Let the namespace route, by ``rules``."""
    with inside(space):
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
    _run(space, "nft -f -", rules)


def _run(space: int, command: str, given: str = "") -> None:
    with inside(space):
        environment = {**os.environ, "PATH": _SYSTEM_FOLDERS}
        done = subprocess.run(  # noqa: S603 - the words are made here
            command.split(), input=given, env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise EmulationError(f"{command!r} failed: {done.stderr.strip()}; this kernel may lack bridges or nftables")
