"""Weights & Biases, MLflow and trackio, each the real program: offline, a server on this machine, a local database.

They are not among the test requirements: install them beside farflung, and run with ``-m slow``.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from farflung.errors import InputError
from farflung.telemetry.folder import RunFolder
from farflung.tracking import TRACKERS, RunFollower
from tests.support.network.quiet import until
from tests.support.records.recorded_runs import add_steps, begin_run, end_run, recorded_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EVERY_STEP = list(range(1, 21))


def report(folder: RunFolder, name: str) -> None:
    RunFollower(folder.root, name, TRACKERS.get(name)).follow(lambda seconds: True)


def report_in_two_parts(root: Path, name: str) -> RunFolder:
    """The second process has no cursor: only the tracker knows what it has."""
    folder = begin_run(root, project="p")
    add_steps(folder, 0, 8)
    subprocess.run([sys.executable, "-m", "farflung.tracking", name, str(root)], check=True, stdin=subprocess.DEVNULL)
    (root / "trackers" / f"{name}.json").unlink()
    add_steps(folder, 8, 20)
    end_run(folder)
    report(folder, name)
    return folder


def members_of(group: int) -> list[int]:
    """The processes of a process group."""
    return [process.pid for process in psutil.process_iter() if _group(process.pid) == group]


def _group(process: int) -> int:
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return 0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An MLflow server."""
    pytest.importorskip("mlflow")
    program = Path(sys.executable).parent / "mlflow"
    if not program.exists() and shutil.which("mlflow") is None:
        pytest.skip("needs the command mlflow")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(program), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)

    def answers() -> bool:
        try:
            return bool(urllib.request.urlopen(f"{url}/health").status == 200)
        except (OSError, urllib.error.URLError):
            return False

    try:
        until(answers, 120.0)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the server starts processes of its own, which survive its end
        process.wait()
        until(lambda: not members_of(process.pid))


def test_mlflow(tmp_path: Path, server: str) -> None:
    folder = report_in_two_parts(tmp_path / "run-1", "mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("p")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["job.steps"] == "20"
    assert run.data.tags["samples/generated/20"] == "once upon a time"
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((one.step, one.value) for one in losses) == [(step, 3.0 / step) for step in EVERY_STEP]
    assert sorted(one.step for one in client.get_metric_history(run.info.run_id, "eval/loss")) == [5, 10, 15, 20]
    assert (folder.root / "trackers/mlflow.json").exists()


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a file of Weights & Biases: LevelDB's log format, after seven bytes of its own."""
    block, head, position, record = 32768, 7, 7, b""
    while position + head <= len(data):
        if block - position % block < head:
            position += block - position % block
            continue
        _, size, kind = struct.unpack_from("<IHB", data, position)
        if position + head + size > len(data):
            return  # still being written
        record += data[position + head : position + head + size]
        position += head + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def project_and_steps(written: Path) -> tuple[str, list[int]]:
    """What a file of Weights & Biases has: the project, and the steps with a loss."""
    from wandb.proto import wandb_internal_pb2

    steps, project = [], ""
    for data in log_records(written.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        project = project or record.run.project
        items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
        if "train/loss" in items:
            steps.append(int(items["train/global_step"]))
    return project, steps


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    folder = recorded_run(tmp_path / "run-1", offline=True, project="p")
    report(folder, "wandb")
    (place,) = (folder.root / "trackers/wandb/wandb").glob("offline-run-*")
    (written,) = place.glob("run-*.wandb")
    until(lambda: project_and_steps(written) == ("p", EVERY_STEP))  # its own process may write the end after `finish`


def test_wandb_without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"Weights & Biases refuses: .*; set WANDB_API_KEY in the environment"):
        report(recorded_run(tmp_path / "run-1"), "wandb")


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    report_in_two_parts(tmp_path / "run-1", "trackio")
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs("p", "gpt-1")
    assert sorted(row["step"] for row in rows if "train/loss" in row) == EVERY_STEP
