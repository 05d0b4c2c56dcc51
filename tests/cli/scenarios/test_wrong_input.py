"""What a person gets wrong at the command line: one line with rule, value and remedy, and no work is done for it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from farflung.cli.main import main
from farflung.cli.options import to_write
from farflung.cli.trial import demo
from farflung.errors import InputError
from tests.support.commands.error_lines import a_ticket, line, main_ok

JOB = """
steps = 1
micro_batch_sizes = [2, 2]
[model]
recipe = "gpt"
args = { vocab = 256, sequence = 16, layers = 1, width = 16, heads = 2 }
[data]
kind = "text"
path = "{stdlib}"
sequence = 16
"""
FAR = 4e9


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    devices = [f'[[device]]\nname = "{name}"\nmemory = "1 GB"\nspeed = "1 GFLOP/s"\n' for name in "ab"]
    (tmp_path / "two.toml").write_text("".join(devices))
    (tmp_path / "wide.toml").write_text(JOB.replace("width = 16", 'width = "wide"'))
    (tmp_path / "none.toml").write_text(JOB.replace("layers = 1", "layers = -1"))
    settings = '[plan]\nreplicas = 2\n[sync]\nstrategy = "local_sgd"\nsettings = { every = 2 }\n'
    (tmp_path / "sync.toml").write_text(JOB + settings)
    (tmp_path / "int9.toml").write_text(JOB + '[codec]\nname = "int9"\n')
    (tmp_path / "text.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "three.py").write_text("def net():\n    return 3\ndef example_inputs(size):\n    return ()\n")
    (tmp_path / "three.toml").write_text(JOB.replace('"gpt"', '"three.py:net"').replace("args =", "# "))
    return tmp_path


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("submit job.toml --emulate", "--emulate needs the links of a topology: add --topology FILE"),
        ("profile --home nowhere", "/nowhere/submit-ticket; --home names another broker's folder)"),
        ("emulate two-laptops --counters --every '0 s' -- true", "--every must be more than 0, got '0 s'; write e.g. \"2 s\""),
        ("join @nowhere", "there is no file 'nowhere' that could hold a ticket: check the path after @"),
        ("plan sync.toml --topology two-laptops", "sync.toml: strategy 'local_sgd' has no setting 'every'"),
        ("plan int9.toml --topology two-laptops", "int9.toml: codec.name = 'int9' is unknown: did you mean 'int8'? known are "),
        ("trace job.toml", "'job.toml' is a file: name a run, or the folder of one"),
        (
            "plan wide.toml --topology two-laptops",
            "wide.toml: model recipe 'gpt': model.args.width = 'wide': must be a whole number from 1 on",
        ),
        ("plan none.toml --topology two-laptops", "model.args.layers = -1: must be a whole number from 1 on"),
        ("plan three.toml --topology two-laptops", "gives 3: return a torch.nn.Module"),
        ("plan text.toml --topology two-laptops", "job file text.toml can't be read: it is not UTF-8 text; check the path"),
        ("plan . --topology two-laptops", "the folder . holds no run (it has no job.json): name a job file (TOML), a run"),
        (
            "plan job.toml --topology two.toml --what-if 'remove x'",
            "no group of devices and no region; known are a, b",
        ),
        (
            "plan job.toml --topology two-laptops --what-if 'add 0 like laptop-fast'",
            'write "add 2 like NAME" (a device or group)',
        ),
        (
            "plan job.toml --topology two-laptops --mtbf '6 h'",
            "--mtbf needs --explain, which estimates the cost of machine deaths: add",
        ),
        ("plan job.toml --topology two-laptops --explain --mtbf abc", "--mtbf: cannot read 'abc' as a duration"),
        ("emulate true", "'true' is where the topology belongs: write farflung emulate TOPOLOGY -- true ..."),
        ("emulate two-laptops --counters --every abc -- true", "--every: cannot read 'abc' as a duration"),
        ("emulate two-laptops --counters --every '0 s' -- true", "--every must be more than 0, got '0 s'"),
        ("simulate gone.json", "the plan gone.json can't be read: No such file or directory; check the path"),
        ("simulate job.toml", "the plan is not JSON: "),
        (
            "graph job.toml --out gone/graph.svg",
            "gone/graph.svg can't be written: No such file or directory; choose another file",
        ),
        ("profile --save .", ". can't be written: Is a directory; choose another file"),
        ("submit job.toml --retry soon", "--retry: cannot read 'soon' as a duration; write e.g."),
        ("broker --home b --valid forever", "--valid: cannot read 'forever' as a duration"),
        (
            "broker --home b --listen 127.0.0.1:0 --mirror bucket",
            "'bucket' is no URL of an object store; write e.g. s3://bucket/folder",
        ),
        ("broker --home b --run-limit -5", "--run-limit: a number of bytes must be finite and not negative, got '-5'"),
        ("broker --home b --listen 127.0.0.1:70700", "write host:port with a port up to 65535, e.g. 0.0.0.0:7070"),
        (
            "broker --home b --advertise example.org:7070",
            "--advertise 'example.org:7070' is not a host: write a name or an IP addr",
        ),
        (
            "broker --home b --advertise 'my host'",
            "--advertise 'my host' is not a host: write a name or an IP address, without a",
        ),
        (f"join {a_ticket('join', '127.0.0.1:1', FAR)} --memory lots", "--memory: cannot read 'lots' as a number of bytes"),
        (f"join {a_ticket('join', '127.0.0.1:1', FAR)} --advertise ''", "--advertise '' is not a host"),
        ("ticket list --home gone", "gone is no broker's folder: run this on the broker's machine, with the --home that it was"),
        ("ticket issue --home gone --address a.example:7070", "gone is no broker's folder"),
        ("ticket revoke t1 --home gone", "gone is no broker's folder"),
        ("ticket free pc --home gone", "gone is no broker's folder"),
        ("report run-1", "and no such folder; runs there: none"),
        ("trace run-1", "and no such folder; runs there: none"),
        ("demo --folder job.toml", "job.toml can't be made: File exists; name another with --folder"),
        (
            "demo --folder /proc/demo",
            "the folder /proc/demo can't be made: No such file or directory; name another with --folder",
        ),
        ("demo --folder .", "is not empty: name a new folder with --folder"),
    ],
)
def test_it_is_one_line(command: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> object:
        raise AssertionError("work was begun")

    monkeypatch.setattr(demo, "Children", never)
    with pytest.raises(SystemExit):
        main(shlex.split(command))
    said = capsys.readouterr().err
    assert says in said
    assert said.startswith("farflung: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        "doctor --port 70000",
        "doctor --port -1",
        "chaos job.toml --faults -1",
        "plan job.toml --topology two-laptops --planner auto --evaluations -1",
        "plan job.toml --topology two-laptops --planner auto --seconds -1",
        "plan job.toml --topology two-laptops --planner auto --stages 0",
    ],
)
def test_numbers_out_of_range_are_usage_errors(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_ok(*shlex.split(command)) == 2
    assert "Invalid value for" in capsys.readouterr().err


def test_an_interrupted_command_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("farflung.cli.planning.plan.load_job", interrupted)
    assert main_ok("plan", "job.toml", "--topology", "two-laptops") == 130
    assert capsys.readouterr().err == "\nfarflung: interrupted\n"


def test_tickets_of_a_folder_that_no_broker_had_are_not_made(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line(capsys, "ticket", "issue", "--home", "gone", "--address", "a.example:7070", code=2)
    assert not (place / "gone").exists()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied", "/etc/x"), "/etc/x: Permission denied; check path, rights and free space"),
        (OSError(28, "No space left on device"), "No space left on device; check path, rights and free space"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    error: OSError, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> object:
        raise error

    monkeypatch.setattr(demo, "Children", refused)
    assert line(capsys, "demo", "--folder", "new", code=1) == says


def test_asking_whether_a_file_can_be_written_leaves_none(place: Path) -> None:
    assert not to_write(place / "new").exists()
    (place / "old").write_text("as it was")
    assert to_write(place / "old").read_text() == "as it was"
    assert to_write(Path("/dev/null")).exists()
    with pytest.raises(InputError, match=r"gone/new can't be written: No such file or directory; choose another file"):
        to_write(place / "gone/new")


@pytest.mark.parametrize("way", ["@ticket", "ticket", "variable"])
def test_a_ticket_may_stand_in_a_file_or_in_the_environment(
    way: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arguments of a process can be read by everybody on the machine."""
    ticket = a_ticket("submit", "127.0.0.1:1", FAR)
    (place / "ticket").write_text(f"{ticket}\n")
    (place / "ticket").chmod(0o600)
    if way == "variable":
        monkeypatch.setenv("FARFLUNG_TICKET", ticket)
    with pytest.raises(SystemExit):
        main(["join", "--retry", "1 s", *([] if way == "variable" else [way])])
    assert "cannot reach the broker at 127.0.0.1:1" in capsys.readouterr().err
