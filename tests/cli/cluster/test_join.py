"""``farflung join``: what this machine can't do ends the command before the broker is asked."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from farflung import extras
from farflung.cli.home import worker_name
from farflung.cli.main import main
from farflung.security import Ticket
from farflung.security.certificates import new_key

TICKET = str(
    Ticket(scope="join", addresses=("127.0.0.1:9",), fingerprint=bytes(32), ticket_id="t1", secret=bytes(16), expires=4e9)
)


def refused(capsys: pytest.CaptureFixture[str], data: Path, *more: str) -> str:
    with pytest.raises(SystemExit) as over:
        main(["join", TICKET, "--name", "attic", "--data", str(data), *more])
    assert over.value.code == 2
    return capsys.readouterr().err.strip()


@pytest.mark.parametrize("more", [(), ("--service", "--user")])
def test_a_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]) -> None:
    place = tmp_path / "none"
    found = refused(capsys, place, *more)
    assert found == f"farflung: --data {place} does not exist on this machine: name an existing folder"


def test_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("x")
    assert refused(capsys, tmp_path / "text") == f"farflung: --data {tmp_path / 'text'} is a file: name the folder that it is in"


def test_a_folder_of_somebody_else(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", forbidden)
    found = refused(capsys, tmp_path)
    assert found == f"farflung: --data {tmp_path} can't be read: Permission denied; check the rights of this user"


def test_a_worker_is_for_training_or_for_serving(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, tmp_path, "--only", "mining") == (
        "farflung: --only takes training or serving, not 'mining': leave it out to take part in both"
    )


@pytest.mark.parametrize("region", ["x" * 101, "a\nb"])
def test_a_region_that_no_page_could_show(tmp_path: Path, capsys: pytest.CaptureFixture[str], region: str) -> None:
    assert refused(capsys, tmp_path, "--region", region) == (
        f"farflung: --region takes at most 100 printable characters, got {region!r:.40}: choose a short name"
    )


def test_the_default_name_is_the_same_at_each_start_and_differs_between_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines may have equal host names, and a name belongs to one key."""
    monkeypatch.setattr(socket, "gethostname", lambda: "Attic.example.org")
    key, other = new_key(), new_key()
    assert re.fullmatch(r"attic-worker-[0-9a-f]{6}", worker_name(key))
    assert worker_name(key) == worker_name(key)
    assert worker_name(key) != worker_name(other)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--advertise", "lab.example"), "--map-port with --advertise: the router's address is the one that others use"),
        (("--no-listen",), "--map-port with --no-listen: the router needs a worker that listens"),
        (
            ("--listen", "10.0.0.2:7100"),
            "--map-port with --listen 10.0.0.2:7100: the router needs a worker that listens at 0.0.0.0",
        ),
    ],
)
def test_options_with_which_no_port_can_be_mapped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], text: str
) -> None:
    assert text in refused(capsys, tmp_path, "--map-port", *more)


def test_a_mapping_needs_a_library(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    found = refused(capsys, tmp_path, "--map-port")
    assert found.endswith("--map-port needs async-upnp-client, which is not installed here: pip install 'farflung[upnp]'")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a b", "--name: member name 'a b' must be 1 to 63 letters, digits, '-' or '_', with a letter or digit at both ends"),
        ("Attic", "--name: member name 'Attic' must have no capital letters, since TLS takes 'attic' for the same: use that one"),
    ],
)
def test_a_name_that_no_certificate_can_have(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, says: str) -> None:
    assert refused(capsys, tmp_path, "--name", name) == f"farflung: {says}"


def test_a_taken_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = refused(capsys, tmp_path, "--listen", address)
    assert found.startswith(
        f"farflung: cannot listen at {address}: is the port taken, or the address not this machine's? --listen names another"
    )


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("gpu", "unknown device 'gpu': known are auto, cpu, cuda, mps, xpu, with a number, such as cuda:0"),
        ("mps", "device 'mps' is not available here: this machine has no driver for mps; use --device cpu, or --device auto"),
    ],
)
def test_a_missing_device(tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str, says: str) -> None:
    for words in (("--device", device), ("--devices", f"{device},{device}")):
        assert refused(capsys, tmp_path, *words).startswith(f"farflung: {says}")


def test_a_disk_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    place = tmp_path / "file" / "folder"
    found = refused(capsys, tmp_path, "--disk", "1 MB", "--disk-folder", str(place))
    assert found.startswith(f"farflung: --disk-folder {place}: no file can be made there (")
    found = refused(capsys, tmp_path, "--disk", "9000 TB", "--disk-folder", str(tmp_path))
    assert re.fullmatch(
        rf"farflung: --disk 9000 TB: the disk of {tmp_path} has [\d.]+ .?B free; offer less, "
        "or name a folder on another disk with --disk-folder",
        found,
    )


def test_more_memory_than_the_machine_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    says = r"--memory 9000 TB: this machine has [\d.]+ GB of memory; "
    for words in (("--device", "cpu"), ("--devices", "cpu,cpu")):
        assert re.fullmatch(rf"farflung: {says}offer less", refused(capsys, tmp_path, "--memory", "9000 TB", *words))
    with pytest.raises(SystemExit):  # an accelerator could have it
        main(["join", TICKET, "--name", "attic", "--data", str(tmp_path), "--memory", "9000 TB", "--retry", "0 s"])
    assert re.match(rf"{says}on the CPU, this worker offers that much\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--bandwidth", 'a rate needs a unit, got \'20\'; write "20 Mbit/s" or "20 MB/s"'),
        ("--memory", 'a number of bytes needs a unit, got \'20\'; write "20 GB" or "20 MB"'),
        ("--disk", 'a number of bytes needs a unit, got \'20\'; write "20 GB" or "20 MB"'),
        ("--peak", 'a speed needs a unit, got \'20\'; write "20 TFLOP/s" or "20 GFLOP/s"'),
    ],
)
def test_a_size_without_a_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, says: str) -> None:
    assert refused(capsys, tmp_path, option, "20") == f"farflung: {option}: {says}"
