"""Pages name runs by texts from outside: only runs that exist are opened, and each is read once for all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from farflung.errors import ConnectionLost
from farflung.telemetry import RunFolder
from farflung.web.sources.broker_poll import BrokerPoll
from farflung.web.sources.sources import Sources
from tests.support.steps.small_runs import small_job


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    RunFolder(folder).job.write_text(small_job().model_dump_json())
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    made(tmp_path / "runs" / "run-a")
    made(tmp_path / "secret")
    return tmp_path / "runs"


@pytest.mark.parametrize("name", ["../secret", "run-b", "", ".", "..", "/etc", "run-a/../run-a", "run-a/"])
def test_only_runs_of_the_broker_are_opened(runs: Path, name: str) -> None:
    assert Sources(runs=runs).run(name) is None


def test_a_run_is_read_once_for_all_pages(runs: Path) -> None:
    sources = Sources(runs=runs)
    run = sources.run("run-a")
    assert run is not None
    assert sources.run("run-a") is run
    assert run.job is not None, "its page begins with the name of the job"
    assert (sources.names, run.job.name) == (["run-a"], "small")


def test_folders_with_one_name_stay_apart(tmp_path: Path) -> None:
    folders = [made(tmp_path / place / "run-a") for place in ("x", "y")]
    sources = Sources(folders=folders)
    assert sources.names == ["run-a", str(folders[1])]
    assert not sources.has_broker


class Broker:
    """A client that answers once."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = [
            {"version": "1", "members": [{"name": "ada"}], "gone": [], "joining": [], "runs": [], "states": {}}
        ]
        self.closed = 0

    def status(self) -> dict[str, Any]:
        if not self.answers:
            raise ConnectionLost("nobody answers")
        return self.answers.pop()

    def close(self) -> None:
        self.closed += 1


def test_a_broker_that_is_lost_leaves_its_last_words_and_is_called_again(tmp_path: Path) -> None:
    opened: list[Broker] = []

    def open_client() -> Any:
        opened.append(Broker())
        return opened[-1]

    link = {"from": "a", "to": "b", "alpha": 0.1, "beta": 5, "relay": "c"}
    (tmp_path / "links.json").write_text(json.dumps({"links": [link], "uplinks": {}}))
    poll = BrokerPoll(open_client, tmp_path / "links.json")
    poll.refresh()
    assert (poll.state.problem, [one["name"] for one in poll.state.members], poll.state.links[0].relay) == ("", ["ada"], "c")
    poll.refresh()
    assert poll.state.problem == "the broker does not answer: nobody answers"
    assert ([one["name"] for one in poll.state.members], opened[0].closed, poll.client) == (["ada"], 1, None)
    poll.refresh()
    assert (poll.state.problem, len(opened)) == ("", 2)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"links": [{"from": "a"}], "uplinks": {}}'])
def test_a_damaged_table_of_links_is_read_later(tmp_path: Path, text: str) -> None:
    (tmp_path / "links.json").write_text(text)
    poll = BrokerPoll(Broker, tmp_path / "links.json")  # type: ignore[arg-type, return-value]
    poll.refresh()
    assert (poll.state.problem, poll.state.links) == ("", ())
