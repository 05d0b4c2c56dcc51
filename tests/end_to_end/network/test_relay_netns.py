"""Links on a real network: two nodes behind NAT train; outages, restarts, corrupted bytes. Needs root."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from farflung.checkpoint import CheckpointReader
from farflung.cluster import Network
from farflung.emulation import Emulation
from farflung.job import load_job
from farflung.telemetry import RunFolder
from farflung.transports import Insecure, TransportConfig
from farflung.transports.base import EndpointEvents
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.wire.frames import Frame
from tests.support.commands.job_files import job_text
from tests.support.runs.loopback import plainly, same, text_folder

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
SOON = 60.0

LINKS = '[default]\nlatency = "5 ms"\nbandwidth = "{rate}"\n'
DEVICE = '[[device]]\nname = "{0}"\nregion = "{0}"\nmemory = "1 GB"\nspeed = "1 GFLOP/s"\n{1}\n'


def topology(rate: str = "100 Mbit/s", **devices: str) -> str:
    return LINKS.format(rate=rate) + "".join(DEVICE.format(name, more) for name, more in devices.items())


@pytest.mark.timeout(400)
def test_two_behind_nat_of_the_emulator_train_bit_for_bit_without_a_relay(tmp_path: Path) -> None:
    text_folder(tmp_path)
    job = job_text(steps=2, workers=3, plan={"planner": "equal_number"}, checkpoint={"at_end": True})
    (tmp_path / "job.toml").write_text(job)
    (tmp_path / "network.toml").write_text(topology(a="nat = true", b="nat = true", r=""))
    command = [sys.executable, "-m", "farflung", "emulate", "network.toml", "--cluster", "--broker", "r", "--home", "home"]
    command += ["--counters", "--", sys.executable, "-m", "farflung", "submit", "-v", "job.toml"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "behind NATs, and connected directly by hole punching: a and b" in done.stdout
    folder = next(path.parent for path in tmp_path.rglob("result.json"))
    assert RunFolder(folder).read_relayed() == []
    passed = {tuple(line.split()[:2]): line for line in done.stderr.splitlines() if line.startswith(("a ", "b "))}
    assert ("a", "b") in passed
    reader = CheckpointReader.from_folder(folder / "checkpoints")
    kept = reader.read(reader.manifest.states)
    module, _ = plainly(load_job(tmp_path / "job.toml"), tmp_path)
    trained = module.state_dict()
    assert same(kept, {name: trained[name].numpy() for name in kept}) == []


class Ends:
    """a, which is behind NAT, and b, which is not; a dials."""

    def __init__(self, emulation: Emulation) -> None:
        self.emulation, self.got, self.said = emulation, list[Frame](), list[str]()
        config, events = TransportConfig(), EndpointEvents(log=self.said.append)
        with emulation["b"].inside():
            self.b = TcpEndpoint(
                Insecure(name="b"),
                lambda peer, frame: self.got.append(frame),
                listen=f"{emulation['b'].address}:0",
                config=config,
                events=events,
            )
        with emulation["a"].inside():
            self.a = TcpEndpoint(
                Insecure(name="a"), lambda peer, frame: self.got.append(frame), listen="", config=config, events=events
            )
            self.a.connect("b", self.b.address)
            self.a.send("b", Frame("hello"))

    def wait(self, condition: object) -> None:
        end = time.monotonic() + SOON
        while not condition():  # type: ignore[operator]
            assert time.monotonic() < end, self.said
            threading.Event().wait(0.02)


@contextmanager
def ends(rate: str = "100 Mbit/s") -> Iterator[Ends]:
    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(Network.from_text(topology(rate, a="nat = true", b=""))))
        made = Ends(emulation)
        stack.callback(made.b.close)
        stack.callback(made.a.close)
        yield made


def _body(size: int) -> memoryview:
    return memoryview(np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8).data)


@pytest.mark.timeout(200)
def test_after_an_outage_the_one_that_can_dial_does_so_at_once() -> None:
    with ends() as made:
        made.emulation.change({"partition": [["a"], ["b"]]})
        begin = time.monotonic()
        made.wait(lambda: made.a.statistics()["b"].connections == made.b.statistics()["a"].connections == 0)
        found = time.monotonic() - begin
        threading.Event().wait(5.0)  # by now the system waits for seconds before it asks again
        back = made.b.post("a", Frame("late"))
        made.emulation.change({"heal": True})
        healed = time.monotonic()
        back.result(SOON)
        assert found < 4.0, "2 s of silence, and a tick"
        assert time.monotonic() - healed < 3.0
        assert any("no data for 2.0 s" in line for line in made.said)
        assert any("connected again after" in line for line in made.said)


@pytest.mark.timeout(200)
def test_a_restarted_router_and_corrupted_bytes_cost_no_transfer() -> None:
    body = _body(12_000_000)
    with ends("40 Mbit/s") as made, made.emulation["a"].inside():
        transfer = made.a.post("b", Frame("x", {}, (body,)))
        made.wait(lambda: made.a.statistics()["b"].confirmed > 1_000_000)
        made.emulation.change({"reset": True})
        made.wait(lambda: made.a.statistics()["b"].confirmed > 3_000_000)
        made.emulation.change({"from": "a", "to": "b", "corrupt": 0.02})
        made.wait(lambda: any("corrupt" in line or "damaged" in line or "checksum" in line for line in made.said))
        made.emulation.change({"from": "a", "to": "b", "corrupt": 0.0})
        transfer.result(SOON)
        assert bytes(made.got[-1].sections[0]) == bytes(body)
        assert made.a.statistics()["b"].resumed >= 1
