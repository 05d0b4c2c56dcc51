"""What the pages tell a reader to type does what they say: plans and simulations at once, whole clusters in a slow test."""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from farflung.cli.main import main
from farflung.cluster import Topology
from tests.support.commands.command_processes import Program
from tests.support.commands.job_files import LIBRARY, job_text
from tests.support.documents.documented_commands import BENCHMARKS, CASES

DOCS = Path(__file__).resolve().parents[3] / "docs"

#: Code-block commands that need no cluster, in the order in which they can be run.
OFFLINE = (
    "farflung plan job.toml --topology machines.toml",
    "farflung plan job.toml --topology two-laptops --json > plan.json",
    "farflung simulate plan.json --trace trace.json",
    (
        "farflung plan job.toml --topology two-laptops --planner auto "
        '--what-if "add 1 like laptop-fast" --what-if "double here there"'
    ),
)
#: With the price file of the page on the simulator, after the plan was made.
PRICED = 'farflung simulate plan.json --prices prices.toml --mtbf "6 h"'
#: Drawn after the machines of the page, which are planned with first.
DRAWN = "farflung plan job.toml --topology home-lab --explain --draw plan.html"
#: Those of the tutorial on a cluster.
TUTORIAL = (
    "farflung plan job.toml --topology machines.toml --explain --draw plan.html",
    'farflung plan job.toml --topology machines.toml --what-if "add 1 like east-0" --what-if "double east west"',
    "farflung plan job.toml --topology machines.toml --json > plan.json",
)
#: Those of a worker's owner, on its machine.
OWNER = (
    "farflung pause",
    'farflung limit --hours 22:00-07:00 --memory "4 GB" --bandwidth "20 Mbit/s"',
    "farflung drain",
    "farflung leave",
    'farflung join farflung1-... --hours 22:00-07:00 --bandwidth "20 Mbit/s"',
)
#: Those of the tutorial on volunteers.
VOLUNTEERS = ("farflung ticket issue", "farflung join farflung1-... --unreliable")
#: Those that the slow tests type.
CLUSTER = (
    "farflung broker",
    "farflung broker --listen 0.0.0.0:7070 --advertise broker.example.org",
    "farflung join farflung1-...",
    'farflung join farflung1-... --name attic-pc --device cuda --memory "10 GB" --data /data',
    "farflung profile",
    "farflung profile --save machines.toml",
    "farflung submit job.toml",
    "farflung submit job.toml --topology machines.toml",
    "farflung status",
    "farflung status RUN",
    "farflung watch RUN",
    "farflung stop RUN",
    "farflung stop RUN --now",
    "farflung report RUN",
    "farflung report FOLDER",
    "farflung trace run-3f9ac2d1",
    "farflung trace run-3f9ac2d1 --perfetto trace.json",
    "farflung checkpoint list RUN",
    "farflung checkpoint verify RUN",
    "farflung checkpoint export RUN model.safetensors",
    "farflung logs RUN",
    "farflung logs RUN --follow",
    "farflung logs attic-pc --lines 200",
    "farflung logs",
    'farflung generate RUN --prompt "def "',
    'farflung generate RUN --prompt "def " --temperature 0',
)
#: Those that tests elsewhere run: with peft, with children of its own.
ELSEWHERE = {
    "farflung broker --metrics 127.0.0.1:9464": "integrations/scenarios/test_prometheus.py",
    "farflung join TICKET --metrics 127.0.0.1:9465": "integrations/scenarios/test_prometheus.py",
    "farflung join TICKET": "cli/scenarios/test_cli_processes.py",
    'farflung join farflung1-... --name attic-1 --only training --memory "10 GB"': "serving/scenarios/test_shared_machines.py",
    'farflung join farflung1-... --name attic-2 --only serving --memory "4 GB"': "serving/scenarios/test_shared_machines.py",
    "farflung join TICKET --isolation required": "engines/test_isolation.py",
    "farflung join TICKET --isolation off": "engines/test_isolation.py",
    "farflung join TICKET --map-port": "end_to_end/network/test_port_mapping_netns.py",
    "farflung join TICKET --engine jax": "end_to_end/engines/test_jax_workers.py",
    "farflung join TICKET --devices all": "engines/site/test_devices.py",
    "farflung join TICKET --devices 0,1": "engines/site/test_devices.py",
    "farflung join TICKET --devices cpu,cpu": "cli/scenarios/test_join_site.py",
    "farflung up cluster.toml": "launchers/test_ssh.py",
    "farflung up examples/clusters/compose.toml": "launchers/test_compose.py",
    "farflung submit job.toml --ticket @FILE": "launchers/test_ssh.py",
    "farflung submit job.toml --ticket @~/.farflung/clusters/lab/owner-ticket": "launchers/test_ssh.py",
    "farflung scale cluster.toml 2": "launchers/test_ssh.py",
    "farflung logs cluster.toml --follow": "launchers/test_ssh.py",
    "farflung down cluster.toml": "launchers/test_ssh.py",
    "farflung serve MODEL_FOLDER": "serving/scenarios/test_served_runs.py",
    "farflung serve MODEL_FOLDER --ticket @FILE --listen 0.0.0.0:8000 --api-key SECRET": "serving/scenarios/test_served_runs.py",
    "farflung doctor": "worker/test_doctor.py",
    "farflung doctor --broker broker.example.org:7070": "end_to_end/network/test_punching_netns.py",
    "farflung kick attic": "broker/test_access_control.py",
    "farflung kick attic --undo": "broker/test_access_control.py",
    "farflung ticket revoke t5f3a910c": "cli/scenarios/test_error_lines.py",
    "farflung ledger": "cli/runs/test_ledger.py",
    "farflung ledger RUN --csv ledger.csv": "cli/runs/test_ledger.py",
    "farflung plan job.toml --topology topology.toml --explain": "cli/planning/test_plan.py",
    "farflung simulate plan.json": "cli/planning/test_simulate.py",
    "farflung simulate plan.json --helper-loss 0.5": "cli/planning/test_simulate.py",
    "farflung report --to tensorboard RUN": "cli/runs/test_report.py",
    "farflung web": "web/scenarios/test_watched_run.py",
    "farflung --install-completion": "cli/test_completion.py",
    "farflung --show-completion": "cli/test_completion.py",
    "farflung broker --listen 0.0.0.0:7070 --advertise broker.example.org --service": "cli/cluster/test_owner.py",
    "farflung submit --resume RUN": "broker/requests/test_continuations.py",
    "farflung submit --resume RUN --steps 2000": "broker/requests/test_continuations.py",
    "farflung submit job.toml --resume RUN": "broker/requests/test_continuations.py",
    'farflung generate RUN --prompt "def " --max-tokens 50 --top-k 40 --top-p 0.9 --seed 7 --step 200': (
        "cli/runs/test_generate.py"
    ),
    "farflung join farflung1-... --name attic-pc --data /data --service": "cli/cluster/test_owner.py",
    "farflung demo --folder NEW_FOLDER --steps N --quick --json": "cli/trial/test_demo.py",
    "farflung checkpoint export RUN out --pretrained": "end_to_end/models/test_transformers_jobs.py",
    "farflung checkpoint export RUN out --adapters": "end_to_end/models/test_transformers_jobs.py",
    "farflung checkpoint export RUN out.safetensors": "cli/runs/test_checkpoint.py",
    "farflung checkpoint push RUN s3://bucket/runs/RUN": "cli/runs/test_checkpoint.py",
    "farflung checkpoint pull s3://bucket/runs/RUN back": "cli/runs/test_checkpoint.py",
    "farflung broker --mirror s3://bucket/runs": "cli/scenarios/test_cli_processes.py",
    "farflung broker --records @records-url": "cli/cluster/test_broker_records.py",
    "farflung broker --records @records-url --standby": "cli/cluster/test_broker_records.py",
    "farflung backup broker.tar": "cli/cluster/test_broker_records.py",
    "farflung restore broker.tar": "cli/cluster/test_broker_records.py",
    "farflung chaos job.toml --workers 3 --faults 6 --kinds kill,stop,full_disk --seed 1": "chaos/test_trial.py",
    "farflung chaos job.toml --at worker.prepared --kinds kill --no-broker --json": "chaos/test_trial.py",
    "farflung emulate two-laptops -- python3 -c 'print(\"I am {node} at {address}\")'": "emulation/scenarios/test_page.py",
    "farflung emulate machines.toml --cluster --counters -- farflung submit job.toml --topology machines.toml": (
        "emulation/scenarios/test_page.py"
    ),
}


def a_job(steps: int, data: dict[str, str], **plan: bool | str) -> str:
    """Return the text of a job file with a checkpoint every two steps."""
    planned = {"planner": "equal_number", **plan}
    return job_text(steps=steps, micro_batch_sizes=[2, 2], data=data, checkpoint={"every": 2}, plan=planned)


def test_every_command_is_run_somewhere() -> None:
    """``tests/benchmarks/scenarios/test_benchmarks.py`` reads the commands of benchmarks."""
    shown = {line for _, line in CASES if not line.startswith(BENCHMARKS)}
    assert shown == {*OFFLINE, PRICED, DRAWN, *TUTORIAL, *VOLUNTEERS, *OWNER, *CLUSTER, *ELSEWHERE}
    for name in ELSEWHERE.values():
        text = (DOCS.parent / "tests" / name).read_text(encoding="utf-8")
        known = (
            '"demo"',
            '"export"',
            "export(",
            "farflung emulate",
            '"--service"',
            '"--mirror"',
            '"--records"',
            '"restore"',
            "--metrics",
            "kick(",
            '"ledger"',
            '"--to"',
            '"--explain"',
            '"simulate"',
            '"revoke"',
            '"web"',
            '"join"',
            '"doctor"',
            '"up"',
            '"--engine"',
            "parse_devices(",
            '"required"',
            "run_trial",
            '"generate"',
            '"serve"',
            "--install-completion",
            '"--resume"',
            'only="serving"',
        )
        assert any(word in text for word in known), name


def block(page: str, language: str) -> str:
    """The first block of ``page`` in ``language``: whole files come before parts of them."""
    found = re.search(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert found
    return found[1]


def test_plans_and_simulations_by_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job of the page on jobs, the machines of the page on networks; ``auto`` judges fewer plans than it would."""
    (tmp_path / "job.toml").write_text(block("jobs.md", "toml"))
    (tmp_path / "machines.toml").write_text(block("network.md", "toml"))
    (tmp_path / "prices.toml").write_text(block("simulator.md", "toml"))
    monkeypatch.chdir(tmp_path)
    said = []
    for line in (*OFFLINE, DRAWN, PRICED):
        command, _, target = line.partition(" > ")
        with pytest.raises(SystemExit) as over:
            main([*shlex.split(command)[1:], *(("--evaluations", "4") if "--planner auto" in line else ())])
        out, err = capsys.readouterr()
        assert not over.value.code, f"{line}: {err}"
        if target:
            (tmp_path / target).write_text(out)
        said.append(out)
    assert "attic-pc" in said[0]
    assert json.loads(said[1])["plan"]["stages"]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert re.search(r"^double here there +\S+", said[3], flags=re.MULTILINE)
    assert "<svg" in (tmp_path / "plan.html").read_text()
    assert re.search(r"^cost of .* steps?: .* USD", said[5], flags=re.MULTILINE)
    assert "throughput with deaths" in said[5]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_cluster_of_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its three files give the output that the page shows, and a price."""
    page = "tutorials/evaluate-a-cluster.md"
    blocks = re.findall(r"```(\w*)\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    files = [text for language, text in blocks if language == "toml"]
    for name, text in zip(("machines.toml", "job.toml", "prices.toml"), files, strict=True):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)

    def typed(line: str) -> str:
        with pytest.raises(SystemExit) as over:
            main(shlex.split(line)[1:])
        out, err = capsys.readouterr()
        assert not over.value.code, f"{line}: {err}"
        return out

    out = typed(OFFLINE[0])
    (shown,) = [text for _, text in blocks if text.startswith("predicted step")]
    assert out.startswith(shown)
    explained, asked, planned = (typed(line.partition(" > ")[0]) for line in TUTORIAL)
    assert "bottleneck" in explained
    assert "<svg" in (tmp_path / "plan.html").read_text()
    for question in ("add 1 like east-0", "double east west"):
        assert re.search(rf"^{question} +\S+", asked, flags=re.MULTILINE)
    (tmp_path / "plan.json").write_text(planned)
    (cost,) = [text for _, text in blocks if text.startswith("cost of")]
    assert cost in typed(PRICED)


class Pages:
    """Types documented commands; names of the pages stand for those of this cluster."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.names = {"0.0.0.0:7070": "127.0.0.1:0", "broker.example.org": "127.0.0.1", "cuda": "cpu", "10 GB": "2 GB"}
        self.programs: list[Program] = []

    def start(self, line: str, *more: str) -> Program:
        words = [self.names.get(word, word) for word in shlex.split(line)[1:]]
        self.programs.append(Program(self.place, f"program-{len(self.programs)}", *words, *more))
        return self.programs[-1]

    def type(self, line: str, *more: str, code: int = 0) -> str:
        return self.start(line, *more).ends_cleanly(code)

    def join(self, line: str, name: str, *more: str) -> Program:
        program = self.start(line, "--name", name, "--listen", "127.0.0.1:0", *more)
        program.until("joined the broker at")
        return program

    def job(self, path: str, steps: int) -> None:
        (self.place / "job.toml").write_text(a_job(steps, {"path": path}))

    def cluster(self) -> list[Program]:
        """A broker, and a worker by each form of ``farflung join``; ``outside`` is not in their data folder."""
        data, outside = self.place / "data", self.place / "outside"
        for folder in (data / "corpus", outside):
            folder.mkdir(parents=True)
            (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
        self.names["/data"] = str(data)
        self.names["farflung1-..."] = self.start(CLUSTER[1]).until(r"farflung join (\S+)\n")[1]
        return self.workers()

    def workers(self, *more: str) -> list[Program]:
        first = self.join(CLUSTER[3], "attic-pc", *more)
        return [first, self.join(CLUSTER[2], "b", "--data", self.names["/data"], *more)]


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    made = Pages(tmp_path)
    yield made
    for program in made.programs:
        program.process.kill()
        program.process.wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_by_the_pages(pages: Pages, tmp_path: Path) -> None:
    """Measured, planned, trained, watched, reported, traced, exported."""
    pages.cluster()
    assert "attic-pc" in pages.type("farflung profile")
    pages.type("farflung profile --save machines.toml")
    assert Topology.from_toml(str(tmp_path / "machines.toml")).names == ("attic-pc", "b")
    pages.job("corpus", steps=4)
    assert "attic-pc" in pages.type(OFFLINE[0])
    run = by_run(pages.type("farflung submit job.toml --topology machines.toml"))
    folder = pages.place / "home" / "broker" / "runs" / run
    pages.names |= {"RUN": run, "FOLDER": str(folder), "run-3f9ac2d1": run}
    assert folder.is_dir()

    assert run in pages.type("farflung status")
    assert "step 4/4" in pages.type("farflung status RUN")
    assert "finished after 4 steps" in pages.type("farflung watch RUN")
    for line in ("farflung logs RUN", "farflung logs RUN --follow", "farflung logs"):
        assert "finished after 4 steps" in pages.type(line)
    assert "ready with stage" in pages.type("farflung logs attic-pc --lines 200"), "what the worker itself says"
    for line in ("farflung report RUN", "farflung report FOLDER"):
        (folder / "report.html").unlink(missing_ok=True)
        pages.type(line)
        assert (folder / "report.html").exists(), line
    assert "hidden" in pages.type("farflung trace run-3f9ac2d1")
    pages.type("farflung trace run-3f9ac2d1 --perfetto trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "step        4  " in pages.type("farflung checkpoint list RUN")
    assert "step 4: complete" in pages.type("farflung checkpoint verify RUN")
    pages.type("farflung checkpoint export RUN model.safetensors")
    assert (tmp_path / "model.safetensors").stat().st_size > 1000
    for line in ('farflung generate RUN --prompt "def "', 'farflung generate RUN --prompt "def " --temperature 0'):
        assert "def " in pages.type(line)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_are_stopped_by_the_pages(pages: Pages) -> None:
    pages.cluster()
    for line, told in (("farflung stop RUN", "stopping after the current step"), ("farflung stop RUN --now", "stopped")):
        pages.job("corpus", steps=100_000)
        long = pages.start("farflung submit job.toml")
        pages.names["RUN"] = long.until(r"(run-\w+): [^;]+; folder on the broker: \S+")[1]
        long.until("step 2")
        assert told in pages.type(line)
        assert "stopped after" in long.ends_cleanly(0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_data_are_confined_and_tickets_managed_by_the_pages(pages: Pages, tmp_path: Path) -> None:
    """Data below ``--data`` are read, others only with ``--any-path``."""
    outside = tmp_path / "outside"
    before = pages.cluster()
    pages.job(str(outside), steps=2)
    assert f"data path '{outside}' leads out of" in pages.start("farflung submit job.toml").ends_cleanly(12)
    for worker in before:
        worker.kill(signal.SIGINT)
        worker.ends_cleanly(0)
    pages.workers("--any-path")
    assert "finished after 2 steps" in pages.type("farflung submit job.toml")

    (ticket, *_) = re.findall(r"^(\w+) .*join", pages.type("farflung ticket list"), flags=re.MULTILINE)
    pages.names["ID"] = ticket
    pages.type("farflung ticket revoke ID")
    assert "farflung1-" in pages.type("farflung ticket issue")
    assert "farflung1-" in pages.type("farflung ticket issue --scope owner")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_owners_by_the_pages(pages: Pages) -> None:
    """The commands find the one worker of this machine without a name and without a ticket."""
    pages.names["farflung1-..."] = pages.start(CLUSTER[1]).until(r"farflung join (\S+)\n")[1]
    worker = pages.join(OWNER[4], "attic-pc")
    assert "attic-pc: paused" in pages.type("farflung pause")
    assert "attic-pc: " in pages.type(OWNER[1])
    assert "attic-pc: leaves after the run that it works on" in pages.type("farflung drain")
    worker.ends_cleanly(0)
    worker = pages.join(CLUSTER[2], "attic-pc")
    assert "attic-pc: leaves, after the current step" in pages.type("farflung leave")
    worker.ends_cleanly(0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_volunteers_by_the_pages(pages: Pages) -> None:
    """A helper joins with a ticket of its own, and leaves at once while the run goes on."""
    pages.names["farflung1-..."] = pages.start(CLUSTER[1]).until(r"farflung join (\S+)\n")[1]
    pages.join(CLUSTER[2], "home")
    pages.names["farflung1-..."] = re.findall(r"farflung1-\S+", pages.type(VOLUNTEERS[0]))[0]
    helper = pages.join(VOLUNTEERS[1], "volunteer")
    (pages.place / "job.toml").write_text(a_job(40, LIBRARY, helpers=True, schedule="gpipe"))
    run = pages.start("farflung submit job.toml")
    run.until("step 2")
    helper.kill(signal.SIGKILL)
    assert "finished after 40 steps" in run.ends_cleanly(0)


def by_run(text: str) -> str:
    found = re.search(r"(run-\w+): [^;]+; folder on the broker: \S+", text)
    assert found, text
    return found[1]
