"""A member that comes back without a good ticket: its kept certificate says who it is, for as long as it is good."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from farflung import __version__
from farflung.errors import ConnectionLost, SecurityError
from farflung.messages.versions import PROTOCOL_VERSION
from farflung.security import Credentials, make_request, new_key
from farflung.wire.frames import Frame
from farflung.worker.membership import join
from tests.support.network.quiet import nobody
from tests.support.runs.loopback import Loopback


def test_a_kept_certificate_is_as_good_as_a_ticket(tmp_path: Path) -> None:
    key, kept = new_key(), tmp_path / "kept"
    with Loopback(tmp_path, 0) as cluster:
        ticket = cluster.ticket("join")
        late = replace(ticket, expires=1.0)
        with pytest.raises(SecurityError, match="expired"):
            join(late, name="attic", role="worker", key=key, kept=kept)
        first = join(ticket, name="attic", role="worker", key=key, kept=kept)
        first.client.close()
        again = join(late, name="attic", role="worker", key=key, kept=kept)
        again.client.close()
        assert again.name == "attic"
        assert again.credentials.certificate != first.credentials.certificate
        assert Credentials.load(kept).certificate == again.credentials.certificate, "the fresh one is kept"
        for name, other in (("cellar", key), ("attic", new_key())):
            with pytest.raises(SecurityError, match="expired"):
                join(late, name=name, role="worker", key=other, kept=kept)
        with pytest.raises(SecurityError, match="expired"):
            join(replace(late, fingerprint=bytes(32)), name="attic", role="worker", key=key, kept=kept)


def test_the_broker_has_the_last_word(tmp_path: Path) -> None:
    key, kept = new_key(), tmp_path / "kept"
    with Loopback(tmp_path, 0) as cluster:
        ticket = cluster.ticket("join")
        member = join(ticket, name="attic", role="worker", key=key, kept=kept)
        stolen = {"request": make_request("attic", new_key()), "protocol": PROTOCOL_VERSION, "version": __version__}
        with pytest.raises(SecurityError, match="a certificate is renewed for its own key only"):
            member.client.call("renew", Frame("renew", stolen))
        cluster.broker.names.free("attic")
        with pytest.raises(SecurityError, match="the name 'attic' is not bound to this key any more; join again with a ticket"):
            join(replace(ticket, expires=1.0), name="attic", role="worker", key=key, kept=kept)
        member.client.close()
        member = join(ticket, name="attic", role="worker", key=key, kept=kept)
        member.client.close()
        cluster.broker.tickets.revoke(ticket.ticket_id, 1.0)
        with pytest.raises(SecurityError, match="that 'attic' joined with was revoked; ask the broker's owner"):
            join(ticket, name="attic", role="worker", key=key, kept=kept)


def test_the_addresses_of_a_ticket_are_tried_in_turn(tmp_path: Path) -> None:
    with Loopback(tmp_path, 0) as cluster, nobody() as dead:
        ticket = cluster.ticket("submit")
        both = replace(ticket, addresses=(dead, *ticket.addresses))
        member = join(both, name="me", role="client")
        assert member.client.address.endswith(f":{cluster.broker.member_port}")
        assert member.again is not None
        again = member.again()
        assert (again.name, again.client.address) == (member.name, member.client.address)
        for one in (member, again):
            one.client.close()
        alone = join(ticket, name="other", role="client")
        assert alone.again is None
        alone.client.close()
        with pytest.raises(ConnectionLost, match=f"cannot reach the broker at {dead}"):
            join(replace(ticket, addresses=(dead,)), name="me", role="client")


def test_a_certificate_is_renewed_at_the_broker_that_has_taken_over(tmp_path: Path) -> None:
    """Without a valid ticket: the port for members is the one after the port of the ticket."""
    key, kept = new_key(), tmp_path / "kept"
    with Loopback(tmp_path, 0) as cluster, nobody() as dead:
        ticket = cluster.ticket("join")
        join(ticket, name="attic", role="worker", key=key, kept=kept).client.close()
        (kept / "broker").write_text(f"{dead} {ticket.fingerprint.hex()}")  # of the leader that is lost
        door = f"127.0.0.1:{cluster.broker.member_port - 1}"
        late = replace(ticket, expires=1.0, addresses=(dead, door))
        again = join(late, name="attic", role="worker", key=key, kept=kept)
        again.client.close()
        assert again.client.address == f"127.0.0.1:{cluster.broker.member_port}"
