"""What ``--devices`` means, and its errors."""

from __future__ import annotations

import sys

import pytest

from farflung.engines.devices import ComputeDevice
from farflung.engines.isolation import open_site
from farflung.engines.site import check_devices, parse_devices
from farflung.errors import InputError

CPU = ComputeDevice(name="cpu", cores=2)
GPUS = [ComputeDevice(name=f"cuda:{number}", model="T4", memory=16 << 30) for number in range(4)]
MACHINE = [*GPUS, CPU]


def names(text: str, found: list[ComputeDevice]) -> list[str]:
    return [device.name for device in check_devices(parse_devices(text), found)]


def test_the_forms() -> None:
    assert names("all", MACHINE) == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert names("0,2", MACHINE) == ["cuda:0", "cuda:2"]
    assert names("cuda:1, cuda:3", MACHINE) == ["cuda:1", "cuda:3"]
    assert names("cpu,cpu", MACHINE) == ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("0,,1", "--devices '0,,1' has an empty name: write all, numbers such as 0,1, or names such as cuda:0,cuda:1 or cpu,cpu"),
        ("cpu", "--devices 'cpu' names one device: name at least two, or use --device cpu"),
        ("0,1,0", "--devices names 'cuda:0' twice: only cpu can have several ranks"),
        (",".join(["cpu"] * 65), "--devices names 65 devices, a site has at most 64: join the others as a second site"),
        ("0,7", "device 'cuda:7' is not available here: there is cuda:0 T4 "),
        ("0,cpu", "--devices names cpu and cuda: the ranks of a site are of one kind; join each kind as a worker"),
    ],
)
def test_errors(text: str, error: str) -> None:
    with pytest.raises(InputError) as raised:
        names(text, MACHINE)
    assert str(raised.value).startswith(error)


def test_one_device_under_two_names() -> None:
    with pytest.raises(InputError, match=r"^--devices names 'cuda:0' twice"):
        names("0,cuda:0", MACHINE)


def test_all_needs_two_accelerators() -> None:
    with pytest.raises(InputError) as raised:
        names("all", [GPUS[0], CPU])
    there = f"{GPUS[0]}, {CPU}"
    assert str(raised.value) == f"--devices all needs two accelerators: there is {there}; use --device auto, or --devices cpu,cpu"


@pytest.mark.parametrize(
    ("engine", "isolation", "error"),
    [
        ("jax", "auto", "--devices with --engine 'jax': the ranks of a site compute with torch; remove one of the two"),
        ("auto", "off", "--devices with --isolation off: each rank is a process of its own; use --isolation auto"),
    ],
)
def test_what_has_no_ranks(engine: str, isolation: str, error: str) -> None:
    with pytest.raises(InputError) as raised:
        open_site(("cpu", "cpu"), engine, isolation, lambda line: None)
    assert str(raised.value) == error


def test_another_system_has_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InputError) as raised:
        open_site(("cpu", "cpu"), "auto", "auto", lambda line: None)
    assert str(raised.value) == "--devices on darwin: the ranks of a site need Linux; join each device as a worker with --device"
