"""The demo as a user starts it: it ends with its table, and leaves no process behind, however it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from farflung.checkpoint import CheckpointReader
from farflung.cli.main import main
from farflung.web.reports import load_run


@contextmanager
def demo(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """``farflung demo --quick`` as a process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would hand down "ignored"
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "farflung", "demo", "--quick", "--folder", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    signal.signal(signal.SIGINT, before)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # it ends what it has started
            process.communicate(timeout=60)


def read_until(process: subprocess.Popen[str], text: str, *, stderr: bool = False) -> list[psutil.Process]:
    """Read the demo's output up to a line with ``text``; the processes that it has started by then."""
    assert process.stdout is not None
    assert process.stderr is not None
    for line in process.stderr if stderr else process.stdout:
        if text in line:
            return psutil.Process(process.pid).children(recursive=True)
    raise AssertionError(f"the demo never said {text!r}, but: {(process.stdout if stderr else process.stderr).read()}")


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--folder", str(tmp_path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"farflung: {tmp_path} is not empty: name a new folder with --folder\n"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_it_trains_compares_and_leaves_nothing_running(tmp_path: Path) -> None:
    with demo(tmp_path / "d", "--json") as process:
        children = read_until(process, "all workers are there", stderr=True)
        started = [child for child in children if child.ppid() == process.pid]
        assert len(started) == 5, "a broker and four workers; processes of jobs are the workers' own"
        facts, out = process.communicate()
    assert process.returncode == 0, out
    for word in ("predicted step", "adatopk 100", "time to", "text by int4", "The death of west-1 in the run int4:"):
        assert word in out
    last = out[out.index("What happened, and what to do next:") :]
    assert "One worker was killed. The run continued without it after" in last
    command = re.search(r"farflung (generate \S+ --prompt 'import ')", last)
    assert command is not None
    with pytest.raises(SystemExit) as over:
        main(shlex.split(command[1]))
    assert not over.value.code
    assert not [child for child in children if child.is_running()]
    runs = [load_run(folder) for folder in (tmp_path / "d" / "broker" / "runs").iterdir()]
    assert sorted(run.label for run in runs) == ["adatopk 100", "dense", "int4"]
    assert all(run.result is not None and run.result.status == "finished" for run in runs)
    assert {device for run in runs for device in run.plan.devices} == {"east-0", "east-1", "west-0", "west-1"}
    recovered = next(run for run in runs if run.label == "int4")
    assert recovered.plan.devices == recovered.recoveries[-1].devices == ("east-0", "east-1", "west-0")
    first = {round(run.steps[0].loss, 2) for run in runs}
    assert max(first) - min(first) < 0.05, "the same weights and data at first"
    for run in runs:
        assert run.result is not None
        folder = Path(run.result.checkpoint).parent
        assert CheckpointReader.from_folder(folder).manifest.step == len(run.steps)
        assert (folder.parent / "report.html").is_file()
    found = json.loads(facts)
    assert found["report"] == str(tmp_path / "d" / "report.html")
    assert [(one["label"], one["status"], len(one["recoveries"])) for one in found["runs"]] == [
        ("dense", "finished", 0),
        ("adatopk 100", "finished", 0),
        ("int4", "finished", 1),
    ]
    assert found["runs"][2]["text"]
    assert found["runs"][2]["recoveries"][0]["devices"] == ["east-0", "east-1", "west-0"]
    assert "int4" in (tmp_path / "d" / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["starting a broker", "1 of 3"])
def test_a_signal_ends_everything(tmp_path: Path, sign: signal.Signals, moment: str) -> None:
    with demo(tmp_path / "d") as process:
        read_until(process, moment)
        pids = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(sign)
        _, err = process.communicate()
        assert process.returncode == 130
        assert err == f"farflung: interrupted; what was started is ended, what was trained is in {tmp_path / 'd'}\n"
        assert not [child for child in pids if child.is_running()]
        assert not running_in(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("moment", ["1 of 3", "predicted step"])
def test_a_dead_worker_ends_the_demo_with_its_name(tmp_path: Path, moment: str) -> None:
    with demo(tmp_path / "d") as process:
        children = read_until(process, moment)
        victim = next(child for child in children if "west-1" in child.cmdline())
        victim.kill()
        _, err = process.communicate()
        assert process.returncode == 13
        assert "west-1 ended by itself (signal 9)" in err
        assert str(tmp_path / "d" / "logs" / "west-1.log") in err
        assert not running_in(tmp_path)


def running_in(folder: Path) -> list[psutil.Process]:
    """Processes whose FARFLUNG_HOME is below ``folder``."""
    found = []
    for process in psutil.process_iter():
        try:
            home = process.environ().get("FARFLUNG_HOME", "")
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if home.startswith(str(folder)):
            found.append(process)
    return found
