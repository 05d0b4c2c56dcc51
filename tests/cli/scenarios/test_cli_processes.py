"""The commands as processes: a run from broker to checkpoint; what SIGKILL and Ctrl-C do to each of them."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from farflung.checkpoint import CheckpointReader, CheckpointStore
from tests.support.commands.command_processes import PATIENCE, Program
from tests.support.commands.job_files import LIBRARY, job_text

#: "cleanly within seconds", on a machine that does other things as well
SOON = 20.0


class Cluster:
    def __init__(self, place: Path) -> None:
        self.place = place
        self.programs: list[Program] = []
        mirror = ("--mirror", (place / "mirror").as_uri()) if find_spec("obstore") else ()
        self.broker = self.start("broker", "broker", "--no-web", "--listen", "127.0.0.1:0", *mirror)
        self.ticket = self.broker.until(r"farflung join (\S+)\n")[1]
        self.workers: dict[str, Program] = {}

    def start(self, name: str, *arguments: str) -> Program:
        program = Program(self.place, name, *arguments)
        self.programs.append(program)
        return program

    def join(self, *names: str) -> None:
        for name in names:
            self.workers[name] = self.start(
                name, "join", self.ticket, "--name", name, "--listen", "127.0.0.1:0", "--retry", "0 s"
            )
        for name in names:
            self.workers[name].until("joined the broker at")

    def job(self, name: str, *, steps: int, workers: int) -> Path:
        path = self.place / f"{name}.toml"
        path.write_text(job_text(steps=steps, workers=workers, on_loss="stop", data=LIBRARY, checkpoint={"every": 2}))
        return path

    def submit(self, name: str, *, steps: int, workers: int) -> Program:
        return self.start(f"submit-{name}", "submit", "--retry", "0 s", str(self.job(name, steps=steps, workers=workers)))

    def status(self, seconds: float = PATIENCE) -> dict[str, object]:
        asked = self.start(f"status-{len(self.programs)}", "status", "--json")
        assert asked.ends(seconds) == 0, asked.text
        found: dict[str, object] = json.loads(asked.text)
        return found


@contextmanager
def cluster(place: Path, *names: str) -> Iterator[Cluster]:
    made = Cluster(place)
    try:
        made.join(*names)
        yield made
    finally:
        for program in made.programs:
            program.process.kill()
            program.process.wait()


def running(submitted: Program) -> tuple[str, Path]:
    """The run's name and folder, once it has a checkpoint."""
    found = submitted.until(r"(run-\w+): [^;]+; folder on the broker: (\S+)")
    submitted.until("checkpoint after step")
    return found[1], Path(found[2])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_from_broker_to_checkpoint(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b") as made:
        submitted = made.submit("first", steps=4, workers=2)
        text = submitted.ends_cleanly(0)
        folder = Path(re.search(r"folder on the broker: (\S+)", text)[1])  # type: ignore[index]
        assert "finished after 4 steps" in text
        assert (folder / "report.html").exists()
        assert CheckpointReader.from_folder(folder / "checkpoints").manifest.step == 4
        status = made.status()
        assert [member["run"] for member in status["members"]] == [None, None]  # type: ignore[attr-defined]
        kept = tmp_path / "home" / "broker" / "submit-ticket"
        assert kept.exists()
        watched = made.start("watch", "watch", folder.name)
        assert "finished after 4 steps" in watched.ends_cleanly(0)
        for line in ("worker a joined from", "submitted by client-", "planning for ", "training begins", "finished after 4"):
            assert line in made.broker.text
        # Ctrl-C of a worker, then of the broker
        made.workers["a"].kill(signal.SIGINT)
        assert "a: left" in made.workers["a"].ends_cleanly(0, SOON)
        made.broker.until("worker a left")
        made.broker.kill(signal.SIGINT)
        assert "broker: closing" in made.broker.ends_cleanly(0, SOON)
        if find_spec("obstore"):
            made.start("pull", "checkpoint", "pull", f"{(tmp_path / 'mirror').as_uri()}/{folder.name}", "back").ends_cleanly(0)
            assert CheckpointReader.from_folder(tmp_path / "back/checkpoints").manifest.step == 4
        assert not kept.exists(), "a ticket that leads nowhere"
        assert (
            "farflung: the broker said goodbye: it was ended; when it is started again, join again with its ticket"
            in made.workers["b"].ends_cleanly(10, SOON)
        )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_worker_is_killed_in_mid_run(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b", "c") as made:
        submitted = made.submit("long", steps=100_000, workers=3)
        _, folder = running(submitted)
        made.workers["b"].kill(signal.SIGKILL)
        text = submitted.ends_cleanly(13, SOON)
        (line,) = [line for line in text.splitlines() if line.startswith("farflung: ")]
        assert re.search(r"failed after \d+ steps: (worker b is gone|lost b|cannot reach b)", line), line
        store = CheckpointStore(folder / "checkpoints")
        latest = store.latest()
        assert latest is not None
        assert store.verify(latest.step).step % 2 == 0
        members = made.status()["members"]
        assert {member["name"]: member["run"] for member in members} == {"a": None, "c": None}  # type: ignore[attr-defined]
        assert "finished after 2 steps" in made.submit("next", steps=2, workers=2).ends_cleanly(0)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_broker_is_killed_in_mid_run(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b") as made:
        submitted = made.submit("long", steps=100_000, workers=2)
        _, folder = running(submitted)
        made.broker.kill(signal.SIGKILL)
        for name in "ab":
            assert re.search(
                r"farflung: cannot reach the broker at .*check that the broker runs", made.workers[name].ends_cleanly(10, SOON)
            )
        assert "farflung: cannot reach the broker at" in submitted.ends_cleanly(10, SOON)
        store = CheckpointStore(folder / "checkpoints")
        latest = store.latest()
        assert latest is not None
        store.verify(latest.step)
        asked = made.start("status", "status")
        assert "farflung: cannot reach the broker at 127.0.0.1:" in asked.ends_cleanly(10)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_interrupts_in_mid_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(tmp_path, "a", "b") as made:
        submitted = made.submit("long", steps=100_000, workers=2)
        run, folder = running(submitted)
        submitted.kill(signal.SIGINT)
        told = f"farflung: {run} continues without you: farflung watch {run} follows it, farflung stop {run} stops it"
        assert told in submitted.ends_cleanly(130, SOON)
        # inside an emulated cluster the run has no more time than that
        monkeypatch.setenv("FARFLUNG_EMULATED", "home-lab")
        emulated = made.start("emulated", "watch", run)
        emulated.until("checkpoint after step")
        emulated.kill(signal.SIGINT)
        assert f"farflung: {run} ends with the emulated cluster; checkpoint.resume continues" in emulated.ends_cleanly(130, SOON)
        monkeypatch.delenv("FARFLUNG_EMULATED")
        watched = made.start("watch", "watch", run)
        watched.until("checkpoint after step")
        watched.kill(signal.SIGINT)
        assert told in watched.ends_cleanly(130, SOON)
        stopped = made.start("stop", "stop", run)
        assert f"{run}: stopping after the current step" in stopped.ends_cleanly(0)
        assert f"{run}: stopped after" in made.start("watch2", "watch", run).ends_cleanly(0)
        assert json.loads((folder / "result.json").read_text())["status"] == "stopped"
        # a worker that is interrupted in mid run hands over, and the run waits for as many as it wants
        second = made.submit("again", steps=100_000, workers=2)
        running(second)
        made.workers["b"].kill(signal.SIGINT)
        assert "b: left" in made.workers["b"].ends_cleanly(0, SOON)
        second.until("worker b leaves; other workers take over its part")
        second.kill(signal.SIGINT)
        second.ends_cleanly(130, SOON)
