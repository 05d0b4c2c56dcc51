"""The real miniupnpd on a router of a ``NatNetwork``."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farflung.child_processes import end_all
from farflung.emulation.nat_network import NatNetwork

SYSTEM = "/usr/sbin:/sbin:/usr/bin:/bin"
#: The program (None: this machine lacks it; it is in the package miniupnpd-nftables).
DAEMON = shutil.which("miniupnpd", path=SYSTEM)
_CONFIGURATION = """
ext_ifname=wan0
ext_ip=203.0.113.10
listening_ip=lan0
ipv6_disable=yes
secure_mode=yes
system_uptime=yes
uuid=75cb8491-a1dd-4293-89d4-60e6845de198
allow 1024-65535 10.0.0.0/8 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""
#: What miniupnpd expects, and machines behind the router may speak with the router itself.
_RULES = """
table inet filter {
  chain forward { type filter hook forward priority 0; policy accept; jump miniupnpd; }
  chain miniupnpd { }
  chain prerouting { type nat hook prerouting priority -100; policy accept; jump prerouting_miniupnpd; }
  chain prerouting_miniupnpd { }
  chain postrouting { type nat hook postrouting priority 100; policy accept; jump postrouting_miniupnpd; }
  chain postrouting_miniupnpd { }
}
add rule ip farflung input iifname "lan0" accept
"""


class Upnp:
    """The daemon on the router of ``device``."""

    def __init__(self, network: NatNetwork, device: str) -> None:
        self._network, self._device = network, device

    def mappings(self) -> list[str]:
        """The rules of the kernel that forward ports."""
        with self._network.inside_router(self._device):
            listed = subprocess.run(
                ["nft", "list", "chain", "inet", "filter", "prerouting_miniupnpd"],
                env={**os.environ, "PATH": SYSTEM},
                capture_output=True,
                text=True,
                check=True,
            )
        return [line.strip() for line in listed.stdout.splitlines() if "dnat" in line]


@contextmanager
def upnp_on(network: NatNetwork, device: str, place: Path, *, pcp: bool = False) -> Iterator[Upnp]:
    """Run miniupnpd on the router of ``device``. ``place``: a folder for its files. ``pcp``: it speaks PCP, and no UPnP."""
    assert DAEMON is not None
    configuration, log = place / "miniupnpd.conf", place / "miniupnpd.log"
    speaks = "enable_upnp=no\nenable_natpmp=yes\n" if pcp else ""
    configuration.write_text(_CONFIGURATION.replace("203.0.113.10", network.outer[device]) + speaks)
    ready = b"Listening for NAT-PMP/PCP" if pcp else b"HTTP listening on port"
    with network.inside_router(device), log.open("wb") as output:
        environment = {**os.environ, "PATH": SYSTEM}
        subprocess.run(["nft", "-f", "-"], input=_RULES, text=True, env=environment, check=True)
        command = [DAEMON, "-d", "-f", str(configuration), "-P", str(place / "miniupnpd.pid")]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        end = time.monotonic() + 10.0
        while ready not in log.read_bytes():
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < end, log.read_text(errors="replace")
            time.sleep(0.05)
        yield Upnp(network, device)
    finally:
        end_all([process], 5.0)
