"""Revoked tickets and kicked members: their certificates are good for days, and their access ends at once."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from farflung.broker.access_control import AccessControl
from farflung.cli.cluster.status import status
from farflung.client.connection import Client
from farflung.clock import wall_time
from farflung.errors import InputError, SecurityError
from farflung.protocol.events import MemberLied
from farflung.security import Caller, new_key
from farflung.security.audit_log import AuditLog
from farflung.security.name_book import NameBook
from farflung.security.ticket_book import TicketBook
from farflung.transports.rpc import RpcClient
from farflung.wire.frames import Frame
from farflung.worker.membership import join
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, captured, text_job


def audit(home: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (home / "broker" / "audit.jsonl").read_text().splitlines()]


def test_a_revoked_ticket_ends_all_calls_of_its_members(home: Path) -> None:
    """The certificate was kept: it opens no session, makes no call, and is not renewed."""
    with Loopback(home, 0) as cluster:
        ticket, worker_ticket = cluster.ticket("submit"), cluster.ticket("join")
        worker = join(worker_ticket, name="w", role="worker")
        with closing(Client(join(ticket, name="old", role="client"))) as client, closing(worker.client):
            client.status()
            for one in (ticket, worker_ticket):
                cluster.broker.tickets.revoke(one.ticket_id, wall_time())
            said = f"the ticket {ticket.ticket_id} that 'client-old' joined with was revoked; ask the broker's owner"
            for act in (client.status, lambda: client.submit(captured(text_job(steps=1), home))):
                with pytest.raises(SecurityError, match=said):
                    act()
            with pytest.raises(SecurityError, match=f"the ticket {worker_ticket.ticket_id} that 'w' joined with was revoked"):
                list(worker.client.session("session"))
            with pytest.raises(SecurityError, match="was revoked"):
                worker.client.call("renew", Frame("renew", {}))
        refused = [line["call"] for line in audit(home) if line["event"] == "refused"]
        assert refused == ["status", "submit", "session", "renew"]
        cluster.client.status()


@pytest.mark.timeout(300)
def test_workers_of_a_revoked_ticket_are_removed(two: Loopback) -> None:
    assert set(two.members()) == {"a", "b"}
    two.broker.tickets.revoke(two.broker.names.ticket("b"), wall_time())
    until(lambda: "b" not in two.members())
    gone = {one["name"]: one["cause"] for one in two.client.status()["gone"]}  # type: ignore[attr-defined]
    assert gone["b"] == f"its ticket {two.broker.names.ticket('b')} was revoked"


def test_a_revocation_counts_until_its_members_are_gone(tmp_path: Path) -> None:
    """Whatever a removal does, and however often."""
    tickets, names = TicketBook(tmp_path / "tickets.sqlite"), NameBook(tmp_path / "names.sqlite")
    access = AccessControl(tickets, names, AuditLog(tmp_path, wall_time))
    ticket = tickets.issue("join", addresses=("127.0.0.1:1",), fingerprint=bytes(32), now=wall_time())
    names.bind("w", "k", ticket.ticket_id, now=wall_time(), until=wall_time() + 60.0)
    assert access.unwelcome(lambda: ["w"]) == {}
    tickets.revoke(ticket.ticket_id, wall_time())
    for _ in range(2):
        assert access.unwelcome(lambda: ["w"]) == {"w": f"its ticket {ticket.ticket_id} was revoked"}
    assert access.unwelcome(list) == {}


@pytest.mark.timeout(300)
def test_a_kicked_worker_stays_away_until_it_is_readmitted(two: Loopback) -> None:
    with closing(Client(join(two.ticket("owner"), name="owner", role="client"))) as owner:
        with pytest.raises(SecurityError, match="only the broker's owner may kick a member: use a ticket of scope owner"):
            two.client.kick("a")
        with pytest.raises(InputError, match="nobody has joined under the name 'zoe'"):
            owner.kick("zoe")
        with pytest.raises(InputError, match="'client-owner' has the same key as you, so you would bar yourself"):
            owner.kick("client-owner")
        found = owner.kick("a")  # b has the same key
        assert (sorted(found.connected), found.ticket) == (["a", "b"], two.broker.names.ticket("a"))
        until(lambda: not owner.status()["members"])
        # the key is barred, under whatever name
        for name, why in (("a", "'a' was kicked by the broker's owner"), ("other", "the key of 'other' was kicked as 'a'")):
            with pytest.raises(SecurityError, match=f"^{why}; ask the broker's owner to run: farflung kick a --undo$"):
                join(two.ticket("join"), name=name, role="worker", key=two.key)
        assert owner.kick("a", undo=True).connected == ()
        join(two.ticket("join"), name="a", role="worker", key=two.key).client.close()
    assert [line["event"] for line in audit(two.home) if line["event"] in ("kicked", "readmitted")] == ["kicked", "readmitted"]


def test_the_owner_readmits_a_key_whose_name_is_free_again_or_has_another_key(home: Path) -> None:
    with Loopback(home, 0) as cluster, closing(Client(join(cluster.ticket("owner"), name="owner", role="client"))) as owner:
        key, other = new_key(), new_key()
        join(cluster.ticket("join"), name="a", role="worker", key=key).client.close()
        owner.kick("a")
        cluster.broker.names.free("a")
        join(cluster.ticket("join"), name="a", role="worker", key=other).client.close()
        with pytest.raises(SecurityError, match="farflung kick a --undo"):
            join(cluster.ticket("join"), name="b", role="worker", key=key)
        owner.kick("a", undo=True)
        join(cluster.ticket("join"), name="b", role="worker", key=key).client.close()


def test_a_name_that_another_key_took_ends_the_first_ones_calls(home: Path) -> None:
    with Loopback(home, 0) as cluster:
        first = join(cluster.ticket("submit"), name="ann", role="client")
        cluster.broker.names.free("client-ann")
        second = join(cluster.ticket("submit"), name="ann", role="client", key=new_key())
        with closing(Client(first)) as old, closing(Client(second)) as new:
            new.status()
            with pytest.raises(SecurityError, match="the name 'client-ann' belongs to another key now"):
                old.status()


def test_the_audit_log_says_who_did_what_from_where(home: Path) -> None:
    with Loopback(home, 0) as cluster:
        ticket = cluster.ticket("submit")
        with pytest.raises(SecurityError):
            join(ticket, name="nobody", role="worker")
        with closing(Client(join(ticket, name="ann", role="client"))) as client:
            bundle = captured(text_job(steps=1, workers=9), home)
            client.submit(bundle)
            client.stop(bundle.run)
    lines = [line for line in audit(home) if "ann" in line.get("name", "") or line.get("name") == "nobody"]
    assert [line["event"] for line in lines] == ["refused", "joined", "submit", "stop"]
    assert all(line["address"].startswith("127.0.0.1:") for line in lines)
    assert lines[0]["cause"].startswith(f"ticket {ticket.ticket_id} is for 'submit', not for 'join'")
    assert {line["ticket"] for line in lines} == {ticket.ticket_id}


def test_a_certificate_alone_reaches_no_call_before_the_check(home: Path) -> None:
    """The same RPC client, twice: the connection stays open while the ticket is revoked."""
    with Loopback(home, 0) as cluster:
        member = join(cluster.ticket("submit"), name="ann", role="client")
        with closing(RpcClient(member.client.address, member.credentials)) as rpc:
            assert rpc.call("status", Frame("status")).kind == "status"
            cluster.broker.tickets.revoke(cluster.broker.names.ticket("client-ann"), wall_time())
            with pytest.raises(SecurityError, match="was revoked"):
                rpc.call("status", Frame("status"))
        member.client.close()


def test_a_member_that_is_refused_again_and_again_does_not_fill_the_log(tmp_path: Path) -> None:
    tickets, names = TicketBook(tmp_path / "tickets.sqlite"), NameBook(tmp_path / "names.sqlite")
    access = AccessControl(tickets, names, AuditLog(tmp_path, wall_time))
    for name, key in (("ann", "k1"), ("bob", "k2")):
        names.bar(name, key, barred=True)
        for _ in range(100):
            with pytest.raises(SecurityError, match=f"'{name}' was kicked"):
                access.check(Caller(name=name, role="worker", key=key), "session", "")
    lines = [json.loads(line)["name"] for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert 60 <= lines.count("ann") < 80, "60 a minute"
    assert 60 <= lines.count("bob") < 80, "each key has its own"


@pytest.mark.timeout(300)
def test_a_restart_of_the_broker_pardons_nobody_and_the_owner_does(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Loopback(home, 1) as cluster:
        bundle, _ = cluster.submit(text_job(workers=2))
        cluster.broker.manager.handle(MemberLied(run=bundle.run, name="a", cause="a report of nothing"))
    standing = "in quarantine, since it broke the protocol: a report of nothing; farflung kick a --undo resets this"
    with Loopback(home, 1) as cluster:
        (member,) = cluster.client.status()["members"]  # type: ignore[attr-defined]
        assert member["standing"] == member["idle"] == standing
        status(ticket=str(cluster.ticket("submit")))
        assert f"standby ({standing})" in capsys.readouterr().out
        with closing(Client(join(cluster.ticket("owner"), name="owner", role="client"))) as owner:
            owner.kick("a", undo=True)
            assert owner.status()["members"][0]["standing"] == ""  # type: ignore[index]
    with Loopback(home, 1) as cluster:
        assert cluster.broker.runs.machine.standing("a") == ""
