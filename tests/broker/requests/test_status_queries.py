"""What the broker answers about workers, from a worker that really joined."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.commands.idle_members import IdleMembers, member_name
from farflung.broker.live_run import new_run
from farflung.broker.records.run_folders import RunFolders
from farflung.broker.requests import status_queries
from farflung.client import control
from farflung.client.connection import Client
from farflung.messages.calls import Status, StatusAnswer
from farflung.messages.remote_calls import ask
from farflung.protocol.runs import Run, RunState
from farflung.security import Caller
from farflung.thread_group import ThreadGroup
from farflung.transports.rpc import RpcClient
from farflung.worker import process
from farflung.worker.membership import join
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, captured, text_job


def test_status_has_the_region_and_the_free_disk_of_each_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([8e9])
    monkeypatch.setattr(process, "free_space", lambda folders: next(free, 7e8))
    with Loopback(tmp_path, 0) as cluster:
        cluster.add("a", region="attic")

        def row() -> tuple[object, object]:
            (found,) = cluster.client.status()["members"]
            return found["region"], found["disk"]

        assert row() == ("attic", 8e9)
        until(lambda: row() == ("attic", 7e8))  # a heartbeat has reported it


def test_a_worker_that_does_not_know_its_disk_reports_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "free_space", lambda folders: None)
    with Loopback(tmp_path, 1) as cluster:
        (found,) = cluster.client.status()["members"]
        assert (found["region"], found["disk"]) == ("", None)


def test_many_members_come_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [member_name(number) for number in range(5)]
    with Loopback(tmp_path, 0) as cluster, closing(IdleMembers(cluster.ticket("join"))) as idle:
        for name in reversed(names):
            idle.join([name])
        assert [one["name"] for one in cluster.client.status()["members"]] == names[::-1], "one page: as they joined"
        asked: list[Status] = []

        def count(client: RpcClient, request: Status, answer: type[StatusAnswer]) -> StatusAnswer:
            asked.append(request)
            return ask(client, request, answer)

        monkeypatch.setattr(status_queries, "_PAGE", 2)
        monkeypatch.setattr(control, "ask", count)
        status = cluster.client.status()
        assert [one["name"] for one in status["members"]] == names
        assert status["states"] == dict.fromkeys(names, "standby")
        assert "more_members" not in status
        assert [one.after or "" for one in asked] == ["", names[1], names[3]]


def test_a_waiting_run_names_idle_workers_that_may_not_have_it(home: Path) -> None:
    with Loopback(home, 0) as cluster:
        cluster.add("chat", only="serving")
        submitted = cluster.client.submit(captured(text_job(steps=1, workers=1), home), lambda line: None)
        assert (submitted["idle"], submitted["helpers"]) == ("0", "0"), "none is free for it"
        status = cluster.client.status()
        assert [(run["state"], run["barred"]) for run in status["runs"]] == [("waiting", ["chat"])]
        assert [one["idle"] for one in status["members"]] == ["waiting for a job (join --only serving)"]
        cluster.add("a")
        until(lambda: cluster.client.status()["runs"][0]["state"] == "finished")
        assert cluster.client.status()["runs"][0]["barred"] == []


def test_an_idle_worker_is_compared_with_the_newest_run_that_its_owner_allows(home: Path) -> None:
    with Loopback(home, 0) as cluster:
        cluster.add("a", only="training")
        runs, text = cluster.broker.runs, captured(text_job(steps=1, plan={"again": False}), home)
        for name in ("older", "newer", "chat"):
            runs.add(new_run(replace(text, run=name), home / name, "somebody"))
            with runs.changed:
                runs.machine.runs[name] = Run(run=name, workers=1, serves=name == "chat", state=RunState.RUNNING)
        (found,) = cluster.client.status()["members"]
        assert found["idle"] == "newer keeps its plan (plan.again = false)"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_long_queue_and_clients_that_always_ask_do_not_disturb_a_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,500 runs, as many as the quotas of 15 tickets allow, and four clients that ask for the status all the time."""
    waiting, askers, steps = 1500, 4, 60
    locked, owns, over = list[bool](), RunFolders.owns, threading.Event()

    def watch(folders: RunFolders, run: str, caller: Caller) -> bool:
        """Called for each run of an answer: note whether this thread has the main lock."""
        try:
            cluster.broker.runs.changed.notify(0)
        except RuntimeError:
            locked.append(False)
        else:
            locked.append(True)
        return owns(folders, run, caller)

    monkeypatch.setattr(RunFolders, "owns", watch)
    with Loopback(home, 1) as cluster, ExitStack() as ending:

        def client(name: str) -> Client:
            return ending.enter_context(closing(Client(join(cluster.ticket("submit"), name=name, role="client"))))

        for _ in range(waiting):  # without the check of each document, which takes a process
            bundle = captured(text_job(steps=1, workers=9), home)
            live = new_run(bundle, cluster.broker.home / "runs" / bundle.run, "somebody")
            assert cluster.broker.manager.submit(live, lambda live=live: live.store.root.mkdir(parents=True)) == "waiting"
        counts: dict[str, list[int]] = {f"asker-{number}": [] for number in range(askers)}

        def ask_always(name: str, asker: Client) -> None:
            while not over.is_set():
                counts[name].append(len(asker.status()["runs"]))  # type: ignore[arg-type]

        threads = ThreadGroup()
        ending.callback(threads.join)
        ending.callback(over.set)
        for name in counts:
            threads.spawn(name, ask_always, name, client(name))
        until(lambda: all(counts.values()))
        found = cluster.run(text_job(steps=steps, workers=1))
        over.set()
        threads.join()
    assert (found.result.status, len(found.steps)) == ("finished", steps)
    assert [frame.kind for frame in found.frames].count("planned") == 1, "no attempt was lost"
    assert all(set(numbers) <= {waiting, waiting + 1} for numbers in counts.values())
    assert locked
    assert not any(locked), "an answer was made under the main lock"
