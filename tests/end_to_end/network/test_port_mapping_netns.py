"""``farflung join --map-port`` behind a router with the real miniupnpd."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farflung.emulation.nat_network import NatNetwork, missing_programs
from farflung.errors import ConnectionLost
from farflung.nat_types import NatType
from farflung.telemetry import RunFolder
from farflung.transports.pcp import PcpRouter
from farflung.transports.upnp import find_router
from farflung.worker.links.mapped_port import MappedPort, find_port_router
from tests.support.network.nat_cluster import Cluster
from tests.support.network.upnp_daemon import DAEMON, upnp_on

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(
        os.geteuid() != 0 or bool(missing_programs()) or DAEMON is None,
        reason="needs root, iproute2, nftables and miniupnpd (apt-get install miniupnpd-nftables)",
    ),
]

#: miniupnpd maps nothing behind addresses that are reserved for documentation.
INTERNET = "11.2.3"


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.timeout(300)
def test_a_pair_behind_symmetric_nats_trains_without_a_relay_and_the_mapping_goes(tmp_path: Path) -> None:
    devices = {"a": NatType.SYMMETRIC, "b": NatType.SYMMETRIC}
    with NatNetwork(devices, internet=INTERNET) as network, upnp_on(network, "a", tmp_path) as upnp:
        made = Cluster(tmp_path, network, "b")
        a = made.start("a", "a", "join", made.ticket, "--name", "a", "--data", str(tmp_path), "-v", "--map-port")
        a.until(r"the router 10\.1\.0\.1 forwards 11\.2\.3\.10:\d+ to port \d+ of this machine \(UPnP\)")
        a.until(r"joined the broker at .*; peers reach it at 11\.2\.3\.10:\d+")
        assert len(upnp.mappings()) == 1
        text = made.submit(steps=2, workers=2).ends_cleanly(0)
        assert "hole punching" not in text
        assert "cannot connect directly" not in text
        assert RunFolder(made.folder).read_relayed() == []
        assert made.is_exact()
        doctor = made.start("a", "doctor", "doctor", "--broker", f"{network.broker}:7000")
        doctor.until(r"ok +port mapping +the router 10\.1\.0\.1 offers it at 11\.2\.3\.10 \(UPnP\): farflung join TICKET --map-")
        doctor.ends()
        a.kill(signal.SIGINT)
        assert re.search("a: left", a.ends_cleanly(0))
        assert upnp.mappings() == []
        for program in (made.workers["b"], made.broker):
            program.process.terminate()
            program.ends()


@pytest.mark.timeout(120)
def test_a_mapping_lives_as_long_as_it_is_renewed(tmp_path: Path) -> None:
    with NatNetwork({"a": NatType.PORT_RESTRICTED}, internet=INTERNET) as network, upnp_on(network, "a", tmp_path) as upnp:
        with network.inside("a"):
            mapped = MappedPort(7100, find_router, print, lease=3)
            router = find_router()
        assert mapped.address == "11.2.3.10:7100"
        time.sleep(6.0)
        assert len(upnp.mappings()) == 1
        mapped.close()
        assert upnp.mappings() == []
        with network.inside("a"):
            router.map_port(7100, 2)  # and nobody renews it, as after the death of a worker
        assert len(upnp.mappings()) == 1
        eventually(lambda: upnp.mappings() == [])


@pytest.mark.timeout(120)
def test_a_router_that_speaks_pcp_only_maps_a_port(tmp_path: Path) -> None:
    with NatNetwork({"a": NatType.SYMMETRIC}, internet=INTERNET) as network, upnp_on(network, "a", tmp_path, pcp=True) as router:
        said: list[str] = []
        with network.inside("a"):
            mapped = MappedPort(7100, find_port_router, said.append, lease=120)
        assert said == ["the router 10.1.0.1 forwards 11.2.3.10:7100 to port 7100 of this machine (PCP) until this worker leaves"]
        assert len(router.mappings()) == 1
        with network.inside("a"):
            server = socket.create_server(("10.1.0.2", 7100))
        with server, network.inside(""), socket.create_connection(("11.2.3.10", 7100), 5.0):
            server.settimeout(5.0)
            server.accept()[0].close()
        mapped.close()
        assert router.mappings() == []
        with network.inside("a"):
            found = PcpRouter("10.1.0.1")
            assert found.map_port(7100, 120) == 7100
            assert found.map_port(7100, 120, 7100) == 7100
            assert len(router.mappings()) == 1
            found.unmap_port(7100)
        assert router.mappings() == []


@pytest.mark.timeout(120)
def test_a_router_that_refuses_says_why(tmp_path: Path) -> None:
    network = NatNetwork({"a": NatType.PORT_RESTRICTED}, internet=INTERNET)
    with network, upnp_on(network, "a", tmp_path) as upnp, network.inside("a"):
        router = find_router()
        assert router.map_port(7100, 60) == 7100
        router.inner_host = "10.1.0.3"  # it maps ports only for the machine that asks (secure mode)
        with pytest.raises(ConnectionLost, match=r"the router 10\.1\.0\.1 maps no port: error 718"):
            router.map_port(7200, 60)
        assert len(upnp.mappings()) == 1


@pytest.mark.timeout(120)
def test_a_router_without_upnp_costs_a_warning_only(tmp_path: Path) -> None:
    with NatNetwork({"a": NatType.PORT_RESTRICTED}, internet=INTERNET) as network:
        made = Cluster(tmp_path, network)
        a = made.start("a", "a", "join", made.ticket, "--name", "a", "--data", str(tmp_path), "--map-port")
        a.until(r"warning: --map-port: the router 10\.1\.0\.1 offers no UPnP .*; it offers no PCP, either")
        a.until("joined the broker")
        a.kill(signal.SIGINT)
        a.ends_cleanly(0)
        made.broker.process.terminate()
        made.broker.ends()
