"""``farflung submit --resume RUN``: a new run continues an earlier one, bit for bit, without the job file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farflung.checkpoint import CheckpointReader, CheckpointStore
from farflung.cli.main import main
from farflung.cli.runs import submit as command
from farflung.errors import FarflungError, InputError, SecurityError
from farflung.job import make_job, to_json
from farflung.telemetry import RunFolder
from farflung.telemetry.records import StepRecord
from tests.support.runs.loopback import Finished, Loopback, same, text_folder, text_job

JOB = """
name = "tiny"
seed = 3
steps = {steps}
micro_batch_sizes = [3, 2]
[model]
recipe = "gpt"
args = {{ vocab = 256, sequence = 16, layers = 2, width = 16, heads = 2 }}
[data]
kind = "text"
path = "corpus"
sequence = 16
[optimizer]
name = "adamw"
lr = 1e-2
[plan]
planner = "equal_compute"
{more}
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    text_folder(tmp_path)
    with Loopback(tmp_path, 2) as found:
        monkeypatch.setattr(command, "join_broker", lambda ticket, home, **options: None)
        monkeypatch.setattr(command, "Client", lambda membership: Borrowed(found))
        yield found


class Borrowed:
    """The cluster's client, which stays open when the command closes it."""

    def __init__(self, cluster: Loopback) -> None:
        self._client = cluster.client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def close(self) -> None:
        pass


def submit(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as over:
        main(["submit", *map(str, arguments)])
    out, err = capsys.readouterr()
    return int(over.value.code or 0), out, err


def folder_of(out: str) -> Path:
    found = re.search(r"folder on the broker: (\S+)", out)
    assert found is not None, out
    return Path(found[1])


def steps_of(folder: Path) -> list[tuple[int, float]]:
    return [(record.step, record.loss) for record in RunFolder(folder).records() if isinstance(record, StepRecord)]


def continues(out: str, truth: Finished, begin: int) -> None:
    """The printed run's steps and tensors are those of ``truth`` from step ``begin`` on."""
    folder = folder_of(out)
    assert steps_of(folder) == [(record.step, record.loss) for record in truth.steps[begin:]]
    reader = CheckpointReader.from_folder(folder / "checkpoints")
    assert same(truth.tensors(), reader.read(reader.manifest.home)) == []


def test_a_finished_run_gets_more_steps(cluster: Loopback, capsys: pytest.CaptureFixture[str]) -> None:
    truth = cluster.run(text_job(steps=6))
    first = cluster.run(text_job(steps=4))
    code, out, err = submit(capsys, "--resume", first.run)
    assert code == 2
    assert f"{first.run} has a checkpoint after step 4 of 4: add --steps N with N above 4" in err
    code, out, err = submit(capsys, "--resume", first.run, "--steps", "3")
    assert code == 2
    assert f"--steps must be above 4, got 3: {first.run} has a checkpoint after step 4\n" in err
    code, out, err = submit(capsys, "--resume", first.run, "--steps", "6")
    assert code == 0, err
    assert f"continues {first.run} after step 4, up to step 6\n" in out
    assert "capturing" not in out, "the broker has the graphs"
    continues(out, truth, 4)
    again = folder_of(out).name
    assert steps_of(folder_of(submit(capsys, "--resume", again, "--steps", "7")[1]))[0][0] == 6, "and so on"


def test_a_stopped_run_continues_to_its_end(cluster: Loopback, capsys: pytest.CaptureFixture[str]) -> None:
    truth = cluster.run(text_job(steps=6))
    first = cluster.run(text_job(steps=6), on_record=lambda run, record: record.step == 1 and cluster.client.stop(run))
    assert first.result.status == "stopped"
    begin = first.reader().manifest.step
    assert begin < 6
    code, out, err = submit(capsys, "--resume", first.run)
    assert code == 0, err
    continues(out, truth, begin)


def test_the_job_file_may_change_what_does_not_change_results(
    cluster: Loopback, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    truth = cluster.run(text_job(steps=5))
    first = cluster.run(text_job(steps=3))
    (tmp_path / "job.toml").write_text(JOB.format(steps=3, more='schedule = "gpipe"\nreplicas = 1'))
    code, out, err = submit(capsys, tmp_path / "job.toml", "--resume", first.run, "--steps", "5")
    assert code == 0, err
    assert out.index(f"continues {first.run} after step 3, up to step 5") < out.index("capturing the model gpt")
    continues(out, truth, 3)


def test_a_schedule_that_stretches_is_told(cluster: Loopback, capsys: pytest.CaptureFixture[str]) -> None:
    first = cluster.run(text_job(steps=2, schedule={"name": "cosine"}))
    _, out, _ = submit(capsys, "--resume", first.run, "--steps", "4")
    assert "after step 2, up to step 4; its cosine schedule of learning rates now ends at step 4 instead of 2\n" in out


def test_an_unknown_run_is_refused_at_once(cluster: Loopback, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first = cluster.run(text_job(steps=1))
    (tmp_path / "job.toml").write_text(JOB.format(steps=3, more='[checkpoint]\nresume = "run-typo"'))
    for arguments in (("--resume", "run-typo"), (tmp_path / "job.toml", "--resume", "run-typo"), (tmp_path / "job.toml",)):
        code, out, err = submit(capsys, *arguments)
        assert (code, out) == (2, ""), "before the capture"
        assert err == f"farflung: there is no run 'run-typo' to resume; known runs: {first.run} (tiny)\n"


def test_what_can_not_be_resumed(cluster: Loopback, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert submit(capsys)[2] == "farflung: name the job file\n"
    code, _, err = submit(capsys, "--resume", "run-1", "--topology", "two-laptops")
    assert (code, err) == (2, "farflung: --topology needs the job file, too: submit JOB --resume run-1\n")
    bare = cluster.run(text_job(steps=1, checkpoint={"at_end": False}))
    assert f"run '{bare.run}' has no checkpoint to resume from: submit its job again" in submit(capsys, "--resume", bare.run)[2]

    def refused(run: str, record: StepRecord) -> None:
        if record.step == 2:
            cluster.client.stop(run)
            with pytest.raises(InputError, match=rf"run '{run}' is not over \(running\): farflung watch {run} shows it"):
                cluster.client.resume(run, 100)

    cluster.run(text_job(steps=50, checkpoint={"every": 1}), on_record=refused)


def test_a_run_of_somebody_else(cluster: Loopback, tmp_path: Path) -> None:
    from farflung.client.connection import Client
    from farflung.security import kept_key
    from farflung.worker.membership import join

    mine = cluster.run(text_job(steps=1))
    other = Client(join(cluster.ticket("submit"), name="other", role="client", key=kept_key(tmp_path / "other.pem")))
    try:
        with pytest.raises(SecurityError, match=rf"run '{mine.run}' belongs to client-client: only who submitted it"):
            other.resume(mine.run, 3)
        with pytest.raises(FarflungError, match="known runs: none"):
            other.resumable("run-typo")
    finally:
        other.close()


def test_a_run_of_a_python_program(cluster: Loopback) -> None:
    first = cluster.run(text_job(steps=1))
    store = CheckpointStore(first.folder / "checkpoints")
    job = to_json(make_job({"steps": 1, "data": {"kind": "caller"}}))
    store.write_manifest(replace(first.reader().manifest, job=job))
    with pytest.raises(InputError, match="takes its data from the Python program that submitted it: resume it from that program"):
        cluster.client.resume(first.run, 3)
