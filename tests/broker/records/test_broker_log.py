"""``farflung logs``: of a run, of the broker's view of a worker, of a worker here; from here and by ticket."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from farflung.cli.main import main
from farflung.cli.runs import logs
from farflung.client.connection import Client
from farflung.errors import InputError, SecurityError
from farflung.security import kept_key
from farflung.telemetry.log_file import LogWriter
from farflung.telemetry.records import StepRecord
from farflung.worker.membership import join
from tests.support.network.quiet import until
from tests.support.runs.loopback import Finished, Loopback, cut_off, text_folder, text_job


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """Its broker's folder is that of this machine."""
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path))
    text_folder(tmp_path)
    with Loopback(tmp_path, 2) as found:
        yield found


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> list[str]:
    """The lines without date and time (of an error: as they are)."""
    with pytest.raises(SystemExit) as over:
        main(["logs", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert int(over.value.code or 0) == code, err
    return err.splitlines() if code else [line[20:] for line in out.splitlines()]


def trained(cluster: Loopback) -> Finished:
    """A run whose log is complete."""
    wanted = {"prompt": "def", "tokens": 3}
    found = cluster.run(text_job(steps=4, checkpoint={"every": 2}, evaluate={"batches": 1}, generate=wanted))
    until(lambda: "finished after 4 steps" in (found.folder / "run.log").read_text())
    return found


def client(cluster: Loopback, scope: str, name: str) -> Client:
    return Client(join(cluster.ticket(scope), name=name, role="client", key=kept_key(cluster.home / f"{name}.pem")))


def test_the_log_of_a_run(cluster: Loopback, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(cluster)
    lines = shown(capsys, run.run)
    order = ["submitted by client-client", "planning for a, b", "training begins", "checkpoint after step 2", "evaluation after"]
    places = [next(i for i, line in enumerate(lines) if text in line) for text in order]
    assert places == sorted(places), lines
    assert any(line.startswith("step 1: loss ") for line in lines)
    assert lines[-1].startswith("finished after 4 steps in ")
    assert len(lines) == len(set(lines)), "nothing is logged twice"
    assert shown(capsys, run.folder, "--lines", "1") == lines[-1:]
    assert shown(capsys, run.run, "--follow", "-n", "2") == lines[-2:], "a run that is over is not waited for"
    assert f"run {run.run}: {lines[-1]}" in shown(capsys), "the broker's own log"


def test_a_log_is_followed_to_the_end_of_the_run(
    cluster: Loopback, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command looks at the log while the run goes on; it ends after the run's last line."""
    _, folder = cluster.submit(text_job(steps=6, checkpoint={"every": 1}, workers=2))
    until((folder / "run.log").is_file)
    monkeypatch.setattr(logs, "_HERE", 0.01)
    lines = shown(capsys, folder.name, "--follow")
    assert lines[-1].startswith("finished after 6 steps in ")
    assert "checkpoint after step 6" in lines


def test_what_the_broker_logs_of_a_worker(cluster: Loopback, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(cluster)
    lines = shown(capsys, "b")
    assert lines[0].startswith("worker b joined from 127.0.0.1:")
    assert f"run {run.run}: planning for a, b" in lines
    assert not any(line.startswith("worker a joined") for line in lines)


def test_a_worker_of_this_machine(cluster: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = LogWriter()
    (tmp_path / "members").mkdir()
    writer.write(tmp_path / "members" / "b.log", "what b says itself")
    writer.close()
    assert shown(capsys, "b") == ["what b says itself"]
    assert shown(capsys, "b", "--broker")[0].startswith("worker b joined from")


def test_a_name_comes_before_a_folder(
    cluster: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that has the name of a worker is a path only with a slash; a run's folder needs none."""
    run = trained(cluster)
    here = tmp_path / "here"
    (here / "b").mkdir(parents=True)
    shutil.copytree(run.folder, here / "copied")
    monkeypatch.chdir(here)
    assert shown(capsys, "b")[0].startswith("worker b joined from")
    (err,) = shown(capsys, "./b", code=2)
    assert "b has no log (run.log): it is not a run's folder" in err
    assert shown(capsys, "copied") == shown(capsys, "./copied") == shown(capsys, run.run)


def test_by_ticket(cluster: Loopback, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(cluster)
    here = shown(capsys, run.run)
    for scope, name in (("submit", "client"), ("owner", "boss")):
        key = cluster.key if scope == "submit" else kept_key(cluster.home / "boss.pem")
        asked = Client(join(cluster.ticket(scope), name=name, role="client", key=key))
        monkeypatch.setattr(logs, "open_client", lambda ticket, home, asked=asked, **options: asked)
        assert shown(capsys, run.run, "--follow", "--ticket", "x") == here


def test_a_log_is_for_its_owner(cluster: Loopback) -> None:
    run = trained(cluster)
    other, boss = client(cluster, "submit", "other"), client(cluster, "owner", "boss")
    try:
        with pytest.raises(SecurityError, match=rf"run '{run.run}' belongs to client-client: only who submitted it"):
            other.log(run.run, lines=5)
        for name in ("b", ""):
            with pytest.raises(SecurityError, match="is for the broker's owner: use a ticket of scope owner"):
                other.log(name, lines=5)
            assert boss.log(name, lines=5)[0].lines
        with pytest.raises(InputError, match="is not a run's name"):
            boss.log("../broker", lines=5)
    finally:
        other.close()
        boss.close()


def test_names_without_a_log(
    cluster: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(cluster)
    (err,) = shown(capsys, "nobody", code=2)
    assert err == f"farflung: the broker knows no run and no worker 'nobody': farflung status lists them; runs: {run.run} (tiny)"
    (err,) = shown(capsys, tmp_path / "corpus", code=2)
    assert "corpus has no log (run.log): it is not a run's folder, or an older version made it; try farflung report" in err
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path / "elsewhere"))
    (err,) = shown(capsys, "b", code=2)
    assert err == (
        f"farflung: this machine has no log of 'b' (workers with one: none; {tmp_path}/elsewhere/broker is no broker's folder): "
        "name a run's folder, or add --ticket"
    )


def test_a_log_says_now_and_then_how_far_the_run_is(tmp_path: Path) -> None:
    from farflung.broker.records.broker_log import BrokerLog
    from farflung.messages.watching import Note, RecordLine

    (tmp_path / "runs" / "run-1").mkdir(parents=True)
    log = BrokerLog(tmp_path, lambda line: None)
    for step in range(30):
        record = StepRecord(step=step, loss=2.5, seconds=1.0, elapsed=step + 1.0, samples=4)
        log.message("run-1", RecordLine(line=record.to_line()), 1)
    log.say("run run-1: it is slow")
    log.message("run-1", Note(text="it is slow"), 1)
    log.close()
    lines = [line[20:] for line in (tmp_path / "runs" / "run-1" / "run.log").read_text().splitlines()]
    assert lines == [f"step {step}: loss 2.5000, 1.00 s" for step in (1, 11, 21)] + ["it is slow"]


def test_a_loss_is_logged_once(cluster: Loopback) -> None:
    def lose(run: str, record: StepRecord) -> None:
        if record.step == 2:
            cut_off(cluster.workers["b"])

    found = cluster.run(text_job(steps=8, checkpoint={"every": 1}), on_record=lose, anybody=True)
    until(lambda: "finished after 8 steps" in (found.folder / "run.log").read_text())
    lines = [line[20:] for line in (found.folder / "run.log").read_text().splitlines() if "the broker makes a new plan" in line]
    assert [line.partition(" ")[0] for line in lines] == ["lost:"], lines


def test_a_text_that_comes_twice_is_logged_twice(tmp_path: Path) -> None:
    from farflung.broker.records.broker_log import BrokerLog
    from farflung.messages.watching import Note

    (tmp_path / "runs" / "run-1").mkdir(parents=True)
    log = BrokerLog(tmp_path, lambda line: None)
    for _ in range(2):
        log.message("run-1", Note(text="lost: worker b is gone"), 1)
        log.say("run run-1: lost: worker b is gone")
    log.close()
    lines = (tmp_path / "runs" / "run-1" / "run.log").read_text().splitlines()
    assert [line[20:] for line in lines] == ["lost: worker b is gone"] * 2
