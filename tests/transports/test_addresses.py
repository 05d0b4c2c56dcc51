"""Addresses, and the hint about congestion control."""

from __future__ import annotations

from pathlib import Path

from farflung.transports.addresses import congestion_control, host_and_port, reachable_host


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
