"""What ``farflung doctor`` says."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

from farflung import extras
from farflung.cli.main import app
from farflung.engines import ComputeDevice
from farflung.errors import ConnectionLost, InputError, SecurityError
from farflung.extras import ENGINE_LIBRARIES, installed_engines
from farflung.nat_types import NatType
from farflung.transports import upnp
from farflung.worker import doctor
from farflung.worker.doctor import Finding, diagnose


def _found(findings: list[Finding], what: str) -> Finding:
    return next(finding for finding in findings if finding.what == what)


def _system(root: Path, congestion: str, allowed: str, buffers: str = "4096 16384 4194304") -> Path:
    folder = root / "ipv4"
    folder.mkdir()
    for name, text in (
        ("tcp_congestion_control", congestion),
        ("tcp_allowed_congestion_control", allowed),
        ("tcp_wmem", buffers),
        ("tcp_rmem", buffers),
    ):
        (folder / name).write_text(text + "\n")
    return root


def test_a_good_machine_and_its_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        findings = diagnose(broker=f"127.0.0.1:{server.getsockname()[1]}")
    engines = [f"accelerators of {ENGINE_LIBRARIES[name].title}" for name in installed_engines()]
    assert [finding.what for finding in findings[: len(engines) + 3]] == ["versions", *engines, "ports", "address"]
    assert "answers after" in _found(findings, "broker").found
    with pytest.raises(SecurityError, match="is not an address"):
        diagnose(broker="nowhere")


@pytest.mark.parametrize(
    ("nat", "level", "text", "remedy"),
    [
        (NatType.NONE, "good", "no NAT: other machines can connect to this one", ""),
        (NatType.PORT_RESTRICTED, "good", "port-restricted NAT: connects directly, except to machines", ""),
        (NatType.SYMMETRIC, "hint", "symmetric NAT: connects directly to machines without NAT", "forward a port"),
        (None, "hint", "not known: the broker is silent", "give --broker the address of a broker"),
    ],
)
def test_the_type_of_nat_is_named_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, nat: NatType | None, level: str, text: str, remedy: str
) -> None:
    def find_nat(place: tuple[str, int]) -> NatType:
        if nat is None:
            raise ConnectionLost("the broker is silent")
        return nat

    monkeypatch.setattr(doctor, "find_nat", find_nat)
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = _found(diagnose(broker=f"127.0.0.1:{server.getsockname()[1]}"), "NAT")
    assert (found.level, found.found.startswith(text), found.remedy.startswith(remedy)) == (level, True, True)


def test_a_taken_port_and_a_silent_broker_are_bad() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        findings = diagnose(port=port)
    assert _found(findings, f"port {port}").level == "bad"
    with socket.socket() as silent:  # it has a port, so nobody else takes it, and does not listen
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        assert _found(diagnose(broker=f"127.0.0.1:{port}"), "broker").level == "bad"
        told = CliRunner().invoke(app, ["doctor", "--broker", f"127.0.0.1:{port}"])
    assert told.exit_code == 1
    assert "BAD" in told.output
    assert "check address, port and firewall" in told.output


@pytest.mark.parametrize(
    ("congestion", "allowed", "level", "text"),
    [
        ("bbr", "reno bbr", "good", "bbr"),
        ("cubic", "reno bbr cubic", "good", "links between workers use bbr"),
        ("cubic", "reno cubic", "hint", "cubic"),
    ],
)
def test_congestion_control(tmp_path: Path, congestion: str, allowed: str, level: str, text: str) -> None:
    found = _found(diagnose(root=_system(tmp_path, congestion, allowed)), "congestion control")
    assert (found.level, text in found.found) == (level, True)


def test_small_buffers_are_a_hint(tmp_path: Path) -> None:
    found = _found(diagnose(root=_system(tmp_path, "bbr", "bbr", "4096 16384 212992")), "buffers")
    assert found.level == "hint"
    assert "tcp_wmem" in found.remedy
    empty = tmp_path / "nothing"
    assert _found(diagnose(root=empty), "buffers").found == "not known on this system"
    assert _found(diagnose(root=empty), "congestion control").level == "hint"


def test_a_clock_of_long_ago_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e9)
    assert _found(diagnose(), "clock").level == "bad"


CPU = ComputeDevice(name="cpu", cores=8)
GPU = ComputeDevice(name="cuda:0", model="NVIDIA RTX 4090", memory=24_000_000_000)


def test_accelerators_are_named(tmp_path: Path) -> None:
    found = _found(diagnose(devices={"torch": lambda: [GPU, CPU]}, nvidia=tmp_path / "none"), "accelerators of PyTorch")
    assert (found.level, found.found) == ("good", "cuda:0 NVIDIA RTX 4090 24 GB")
    found = _found(diagnose(devices={"jax": lambda: [CPU]}, nvidia=tmp_path / "none"), "accelerators of JAX")
    assert (found.level, found.found, found.remedy) == ("good", "none; its workers use the CPU (8 cores)", "")


def test_a_gpu_that_an_engine_does_not_see_is_told(tmp_path: Path) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    findings = diagnose(devices={"torch": lambda: [GPU, CPU], "jax": lambda: [CPU]}, nvidia=tmp_path)
    assert _found(findings, "accelerators of PyTorch").level == "good"
    found = _found(findings, "accelerators of JAX")
    assert found.level == "hint"
    assert found.remedy.startswith("this machine has an NVIDIA GPU that JAX does not see: install its CUDA build")


def test_an_engine_that_is_broken_is_bad_and_the_other_findings_follow(tmp_path: Path) -> None:
    def broken() -> list[ComputeDevice]:
        raise RuntimeError("jaxlib version 0.9.0 is newer than and incompatible with jax version 0.8.0.\nPlease update jax.")

    findings = diagnose(devices={"jax": broken}, nvidia=tmp_path)
    found = _found(findings, "accelerators of JAX")
    assert found.level == "bad"
    assert found.found == "not known: JAX fails: jaxlib version 0.9.0 is newer than and incompatible with jax version 0.8.0."
    assert found.remedy == "install it anew, or uninstall it: pip install --force-reinstall 'farflung[jax]'"
    assert _found(findings, "disk")


def test_an_engine_that_does_not_load_is_bad(tmp_path: Path) -> None:
    def missing() -> list[ComputeDevice]:
        raise InputError("computing on this machine needs PyTorch")

    found = _found(diagnose(devices={"torch": missing}, nvidia=tmp_path), "accelerators of PyTorch")
    assert (found.level, found.found) == ("bad", "not known: computing on this machine needs PyTorch")


def test_a_machine_without_an_engine_can_have_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    findings = diagnose()
    assert not [finding for finding in findings if finding.what.startswith("accelerators")]
    found = _found(findings, "versions")
    assert found.level == "bad"
    assert found.remedy.endswith("pip install 'farflung[torch]' or pip install 'farflung[jax]'")


def test_jax_is_named_with_its_version_and_device(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    findings = diagnose(nvidia=tmp_path / "none")
    assert f", jax {jax.__version__}" in _found(findings, "versions").found
    assert _found(findings, "accelerators of JAX").found.startswith("none; its workers use the CPU (")


def test_the_isolation_that_jobs_get_is_shown() -> None:
    finding = _found(diagnose(devices={"torch": lambda: [CPU]}), "isolation of jobs")
    assert finding.found.startswith("full: network, ") or (finding.level == "hint" and finding.remedy)


def test_a_machine_behind_a_router_asks_it_for_port_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    def diagnosed() -> Finding | None:
        found = diagnose(broker="192.0.2.1:7070")
        return next((one for one in found if one.what == "port mapping"), None)

    def failing(*_: object) -> NoReturn:
        raise ConnectionLost("nobody is there")

    def asked() -> Any:
        if isinstance(answer, str):
            raise ConnectionLost(answer)
        return answer

    monkeypatch.setattr(doctor, "find_nat", failing)
    monkeypatch.setattr(doctor, "_broker", lambda address: Finding(what="broker", found=address))
    monkeypatch.setattr(doctor, "_engine_devices", dict)
    monkeypatch.setattr(upnp, "find_router", asked)
    monkeypatch.setattr(doctor, "reachable_host", lambda host: "9.9.9.9")
    assert diagnosed() is None, "no router translates its address"
    monkeypatch.setattr(doctor, "reachable_host", lambda host: "10.0.0.2")
    answer: Any = SimpleNamespace(address="10.0.0.1", outer_host=lambda: "9.9.9.9", protocol="UPnP")
    good = diagnosed()
    assert good is not None
    assert (good.level, good.found) == (
        "good",
        "the router 10.0.0.1 offers it at 9.9.9.9 (UPnP): farflung join TICKET --map-port",
    )
    answer = SimpleNamespace(address="10.0.0.1", outer_host=lambda: "", protocol="PCP")
    pcp = diagnosed()
    assert pcp is not None
    assert pcp.found == "the router 10.0.0.1 offers it (PCP): farflung join TICKET --map-port"
    monkeypatch.setattr(upnp, "default_gateway", lambda: "")
    answer = "the router 10.0.0.1 offers no UPnP"
    none = diagnosed()
    assert none is not None
    assert (none.level, none.found) == ("good", "none: the router 10.0.0.1 offers no UPnP")
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    unknown = diagnosed()
    assert unknown is not None
    assert (unknown.level, unknown.found) == ("hint", "not known")
    assert "pip install 'farflung[upnp]'" in unknown.remedy
