"""What the members of one ticket may do, and that status stays whole with many runs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from farflung.broker.quotas import Quotas, TicketQuotas
from farflung.broker.records.run_folders import StorageSettings
from farflung.broker.requests import status_queries
from farflung.client.connection import Client
from farflung.errors import InputError, SecurityError
from farflung.security import Caller
from farflung.security.certificates import new_key
from farflung.worker.membership import join
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, captured, text_job


def test_a_ticket_has_a_place_for_so_many_runs_in_the_queue(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_queries, "_PAGE", 2)
    with Loopback(home, 0, storage=StorageSettings(quotas=Quotas(queued=3))) as cluster:
        runs = [cluster.submit(text_job(steps=1, workers=9))[0].run for _ in range(3)]
        says = r"3 runs that were submitted with ticket t\w+ wait for workers, the most are 3: wait for one to end, or stop one"
        with pytest.raises(InputError, match=says):
            cluster.submit(text_job(steps=1))
        listed = cluster.client.status()["runs"]  # of two pages
        assert [(one["run"], one["ahead"]) for one in listed] == [(run, n) for n, run in enumerate(runs)]  # type: ignore[attr-defined]
        cluster.client.stop(runs[0])
        runs.append(cluster.submit(text_job(steps=1, workers=9))[0].run)
        listed = cluster.client.status()["runs"]
        assert [(one["run"], one["ahead"]) for one in listed] == [(run, max(n - 1, 0)) for n, run in enumerate(runs)]  # type: ignore[attr-defined]


def test_others_have_places_of_their_own(home: Path) -> None:
    with Loopback(home, 0, storage=StorageSettings(quotas=Quotas(queued=1))) as cluster:
        cluster.submit(text_job(steps=1, workers=9))
        with closing(Client(join(cluster.ticket("submit"), name="ann", role="client"))) as ann:
            assert ann.submit(captured(text_job(steps=1, workers=9), home))["state"] == "waiting"


def test_submissions_have_a_rate() -> None:
    quotas = TicketQuotas(Quotas(submissions=2))
    for _ in range(2):
        quotas.submit("t1", 0)
    with pytest.raises(InputError, match=r"members of ticket t1 submit at most 2 runs a minute: try again in (29|30) s"):
        quotas.submit("t1", 0)
    quotas.submit("t2", 0)


def test_joins_have_a_rate_and_names_a_number(home: Path) -> None:
    with Loopback(home, 0, storage=StorageSettings(quotas=Quotas(joins=3, names=2))) as cluster:
        ticket = cluster.ticket("submit")
        keys = [join(ticket, name=name, role="client") for name in ("ann", "ben")]
        for one in keys:
            one.client.close()
        with pytest.raises(SecurityError, match=r"2 names were taken with ticket t\w+, the most are 2: join under one of them"):
            join(ticket, name="cid", role="client")
        join(ticket, name="ann", role="client", key=keys[0].credentials.key).client.close()
        with pytest.raises(SecurityError, match=r"members join with ticket t\w+ at most 3 times a minute: try again in \d+ s"):
            join(ticket, name="ann", role="client", key=keys[0].credentials.key)


def test_weights_are_sent_at_a_rate(home: Path) -> None:
    """Each name made a folder, and every later submission looks at all folders."""
    with Loopback(home, 0, storage=StorageSettings(quotas=Quotas(submissions=2))) as cluster:
        for number in range(2):
            cluster.client.send_weights(f"run-{number}", [b"x"])
        says = r"^members of ticket t\w+ send weights for at most 2 runs a minute: try again in \d+ s$"
        with pytest.raises(InputError, match=says):
            cluster.client.send_weights("run-2", [b"x"])
        assert sorted(place.name for place in (home / "broker/runs").iterdir()) == ["run-0", "run-1"]


def test_calls_at_once_are_bounded_and_others_have_their_own(home: Path) -> None:
    """Each watcher has a thread and a place in the broker's memory, and may never read: one client had as many as it wished."""
    with Loopback(home, 0, storage=StorageSettings(quotas=Quotas(own_calls=3, calls=4))) as cluster:
        ticket = cluster.ticket("submit")
        ann, bob = (Client(join(ticket, name=name, role="client", key=new_key())) for name in ("ann", "bob"))
        with closing(ann), closing(bob):
            run = ann.submit(captured(text_job(steps=1, workers=9), home))["run"]
            open_calls = [ann.watch(run) for _ in range(3)]
            for call in open_calls:
                next(call)
            with pytest.raises(
                InputError, match=r"^member client-ann has 3 calls at the broker, which is the most at once: end some"
            ):
                ann.status()
            assert bob.status()["runs"], "the ticket has a place left"
            open_calls.pop().close()
            until(lambda: not refused(ann))  # when the broker has seen the end of the call
            assert cluster.client.status()["runs"], "another ticket"


def refused(client: Client) -> bool:
    try:
        client.status()
    except InputError:
        return True
    return False


def test_the_clients_of_a_ticket_share_their_calls() -> None:
    quotas = TicketQuotas(Quotas())
    groups = {role: quotas.groups(Caller(name="ann", role=role), lambda name: "t1") for role in ("client", "worker", "owner")}
    assert groups == {
        "client": {"member ann": 128, "the clients of ticket t1": 512},
        "worker": {"member ann": 128},
        "owner": {},
    }
