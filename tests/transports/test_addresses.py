"""Addresses, and the hint about congestion control."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.errors import InputError
from farflung.transports.addresses import congestion_control, host_and_port, is_loopback, listen_at, reachable_host


def test_congestion_control_is_told_with_a_hint(tmp_path: Path) -> None:
    file = tmp_path / "tcp"
    assert congestion_control(file) == ""
    file.write_text("bbr\n")
    assert congestion_control(file) == "TCP congestion control: bbr"
    file.write_text("cubic\n")
    assert congestion_control(file).startswith("TCP congestion control: cubic (on lossy long-distance links bbr is much faster")


def test_addresses() -> None:
    assert host_and_port("192.0.2.1", 7) == "192.0.2.1:7"
    assert host_and_port("::1", 7) == host_and_port("[::1]", 7) == "[::1]:7"
    assert reachable_host("example.org") == "example.org"
    assert reachable_host("0.0.0.0") not in ("", "0.0.0.0")


@pytest.mark.parametrize(
    ("host", "own"), [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("192.0.2.7", False), ("x", False)]
)
def test_loopback(host: str, own: bool) -> None:
    assert is_loopback(host) is own


def test_an_address_of_another_machine() -> None:
    with pytest.raises(InputError) as raised:
        listen_at("192.0.2.1:0", "--listen", "127.0.0.1:8000")
    assert str(raised.value) == "--listen 192.0.2.1:0: Cannot assign requested address; choose another address or port"
