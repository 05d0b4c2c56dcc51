"""Routers that map ports, and hostile ones."""

from __future__ import annotations

import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from farflung.errors import ConnectionLost
from farflung.transports import upnp
from farflung.transports.upnp import Router, default_gateway, find_router
from tests.support.network.upnp_router import DESCRIPTION, FakeRouter, serving


def find(router: FakeRouter) -> Router:
    return find_router("127.0.0.1", router.search)


def refusal(router: FakeRouter) -> str:
    with serving(router):
        try:
            found = find(router)
            found.outer_host()
            found.map_port(7100, 60)
        except ConnectionLost as error:
            return str(error)
    pytest.fail("the router was not refused")


def test_the_router_of_the_default_route_with_the_smallest_metric(tmp_path: Path) -> None:
    routes = tmp_path / "route"
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    rows = [
        "eth1 00000000 FE01A8C0 0003 0 0 200 00000000 0 0 0",
        "eth0 00000000 0101A8C0 0003 0 0 100 00000000 0 0 0",
        "eth0 0001A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0",
    ]
    routes.write_text(head + "\n".join(rows) + "\n")
    assert default_gateway(routes) == "192.168.1.1"
    routes.write_text(head + rows[2] + "\n")
    assert default_gateway(routes) == ""
    routes.write_text(head + "nonsense\n")
    assert default_gateway(routes) == ""
    assert default_gateway(tmp_path / "none") == ""


def test_a_port_is_mapped_renewed_and_removed() -> None:
    router = FakeRouter()
    with serving(router):
        found = find(router)
        assert (found.address, found.inner_host, found.outer_host()) == ("127.0.0.1", "127.0.0.1", "9.9.9.9")
        assert found.map_port(7100, 60) == 7100
        values = router.mapped.pop(7100)
        assert (values["NewInternalClient"], values["NewInternalPort"]) == ("127.0.0.1", "7100")
        assert (values["NewProtocol"], values["NewLeaseDuration"], values["NewEnabled"]) == ("TCP", "60", "1")
        assert found.map_port(7100, 60, outer=7100) == 7100
        found.unmap_port(7100)
        assert router.removed == [7100]


def test_a_mapping_is_renewed_for_days() -> None:
    """After 40 requests, four hours, the worker refused its own renewals, and its port was closed."""
    with serving(FakeRouter()) as router:
        found = find(router)
        for _ in range(50):
            found.map_port(7100, 60, outer=7100)
        found.unmap_port(7100)
    assert router.removed == [7100]


def test_another_outer_port_where_one_is_taken_but_not_for_a_renewal() -> None:
    router = FakeRouter(errors=[718, 718])
    with serving(router):
        found = find(router)
        outer = found.map_port(7100, 60)
        assert outer != 7100
        assert list(router.mapped) == [outer]
        router.errors = [718]
        with pytest.raises(ConnectionLost, match="error 718"):
            found.map_port(7100, 60, outer=outer)
        router.errors = [718] * 5
        with pytest.raises(ConnectionLost, match="error 718"):
            found.map_port(7100, 60)


def test_a_mapping_without_an_end_where_the_router_has_no_others() -> None:
    router = FakeRouter(errors=[725])
    with serving(router):
        assert find(router).map_port(7100, 60) == 7100
    assert router.mapped[7100]["NewLeaseDuration"] == "0"


def test_a_machine_without_a_router_and_a_router_without_upnp(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionLost, match="no default route"):
        find_router("")
    monkeypatch.setattr(upnp, "_SEARCH", 0.3)
    with pytest.raises(ConnectionLost, match=r"127.0.0.1 offers no UPnP \(no answer in 0.3 s\)"):
        find_router("127.0.0.1", ("127.0.0.1", 9))


def test_a_description_at_another_address_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upnp, "_SEARCH", 0.3)
    for location in ("http://127.0.0.2:1/root.xml", "http://[", "x"):
        router = FakeRouter(location=location)
        assert "offers no UPnP" in refusal(router)
        assert router.requests == []


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("192.168.0.7", "no public address, but 192.168.0.7: another NAT is in front of it"),
        ("100.64.0.7", "no public address, but 100.64.0.7"),
        ("127.0.0.1", "no public address"),
        ("\x1b[2J", "no IPv4 address"),
        ("", "no IPv4 address, it says ''"),
    ],
)
def test_an_address_to_which_no_peer_has_a_route(host: str, text: str) -> None:
    assert text in refusal(FakeRouter(outer_host=host.replace("\x1b", "&#xFFFD;")))


def test_the_text_of_an_error_controls_no_terminal() -> None:
    text = refusal(FakeRouter(errors=[501], error_text="\x9b2J bad"))
    assert text == "the router 127.0.0.1 maps no port: error 501 (\N{REPLACEMENT CHARACTER}2J bad)"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("x" * (300 << 10), "more than 262144 bytes"),
        ("<root", "maps no port"),
        ("<root/>", "maps no port"),
        (DESCRIPTION.replace("WANIPConnection", "Layer3Forwarding"), "answers UPnP, but maps no ports"),
        (DESCRIPTION.replace(">/control<", ">http://127.0.0.2/control<"), "answers UPnP, but maps no ports"),
        ('<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY d "&b;&b;">]><root>&d;</root>', "maps no port"),
    ],
)
def test_a_description_that_is_too_large_or_wrong(page: str, text: str) -> None:
    router = FakeRouter()
    router.pages["/root.xml"] = page
    assert text in refusal(router)


def test_a_description_with_endless_services() -> None:
    router = FakeRouter()
    head, service, tail = DESCRIPTION.partition(DESCRIPTION[DESCRIPTION.index("<service>") : DESCRIPTION.index("</serviceList>")])
    router.pages["/root.xml"] = head + service * 200 + tail
    assert "asks for more than 40 requests" in refusal(router)
    assert len(router.requests) == 40


def _elsewhere(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://127.0.0.2:1/")
    handler.end_headers()


def _by_and_by(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    end = time.monotonic() + 30.0
    while time.monotonic() < end:
        try:
            handler.wfile.write(b"<")
        except OSError:
            return
        time.sleep(0.05)


def test_a_redirection_is_not_followed() -> None:
    assert "HTTP 200 but 302" in refusal(FakeRouter(answer=_elsewhere))


def test_an_answer_that_never_ends_takes_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upnp, "_REQUEST", 0.3)
    begin = time.monotonic()
    assert "does not answer UPnP in time" in refusal(FakeRouter(answer=_by_and_by))
    assert time.monotonic() - begin < 25.0
