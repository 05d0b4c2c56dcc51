"""A broker on the internet and workers on devices of a ``NatNetwork``, as processes that train a small job."""

from __future__ import annotations

from pathlib import Path

from farflung.checkpoint import CheckpointReader
from farflung.emulation.nat_network import NatNetwork
from farflung.job import load_job
from tests.support.commands.command_processes import Program
from tests.support.commands.job_files import job_text
from tests.support.runs.loopback import plainly, same, text_folder


class Cluster:
    """A broker on the internet, and one worker on each device."""

    def __init__(self, place: Path, network: NatNetwork, *workers: str) -> None:
        self.place, self.network = place, network
        text_folder(place)
        self.broker = self.start("", "broker", "broker", "--listen", f"{network.broker}:7000", "--home", "broker")
        self.ticket = self.broker.until(r"farflung join (\S+)")[1]
        self.workers = {name: self.join(name) for name in workers}

    def start(self, device: str, name: str, *command: str) -> Program:
        with self.network.inside(device):
            return Program(self.place, name, *command)

    def join(self, name: str) -> Program:
        worker = self.start(name, name, "join", self.ticket, "--name", name, "--data", str(self.place), "-v")
        worker.until("joined the broker")
        return worker

    def submit(self, *, steps: int, workers: int) -> Program:
        text = job_text(steps=steps, workers=workers, plan={"planner": "equal_number"}, checkpoint={"at_end": True})
        (self.place / "job.toml").write_text(text)
        return self.start("", "submit", "submit", "-v", "job.toml", "--home", "broker")

    @property
    def folder(self) -> Path:
        return next(path.parent for path in self.place.rglob("result.json"))

    def is_exact(self) -> bool:
        """Whether the trained weights are those of the plain loop, bit for bit."""
        reader = CheckpointReader.from_folder(self.folder / "checkpoints")
        kept = reader.read(reader.manifest.states)
        trained = plainly(load_job(self.place / "job.toml"), self.place)[0].state_dict()
        return same(kept, {name: trained[name].numpy() for name in kept}) == []
