"""Only peers get past the greeting of a data port, and frames take their memory from the budget."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from farflung.errors import ConnectionLost, MemoryExceeded
from farflung.memory_budget import MemoryBudget
from farflung.security import Credentials
from farflung.transports.base import EndpointEvents
from farflung.transports.config import TransportConfig
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.units import Seconds
from farflung.wire.frames import Frame
from tests.support.network.quiet import until

Member = Callable[..., Credentials]
PATIENCE = 60.0
BRIEF = TransportConfig(redial=Seconds(0.01))
PEERS_ONLY = replace(BRIEF, peers_only=True)


def endpoint(of: Credentials, config: TransportConfig, **events: object) -> TcpEndpoint:
    got: list[Frame] = []
    made = TcpEndpoint(
        of,
        lambda peer, frame: got.append(frame),
        listen="127.0.0.1:0",
        config=config,
        events=EndpointEvents(**events),  # type: ignore[arg-type]
    )
    made.got = got  # type: ignore[attr-defined]
    return made


def test_a_member_that_is_no_peer_gets_no_frame_through(member: Member) -> None:
    budget, said = MemoryBudget(1 << 20), list[str]()
    with (
        closing(endpoint(member("b"), replace(PEERS_ONLY, budget=budget), log=said.append)) as b,
        closing(endpoint(member("z"), BRIEF)) as z,
    ):
        z.connect("b", b.address)
        assert z.reach("b", b.address, PATIENCE), "it can be dialed all the same"
        sent = z.post("b", Frame("x", {}, (bytes(1 << 19),)))
        until(lambda: any("z is no peer of the current run" in line for line in said))
        assert not sent.done()
        assert (b.got, budget.peak) == ([], 0)  # type: ignore[attr-defined]
        z.close()
        with pytest.raises(ConnectionLost):
            sent.result(PATIENCE)


def test_a_peer_that_calls_early_is_let_in_as_soon_as_it_is_known(member: Member) -> None:
    said: list[str] = []
    with closing(endpoint(member("b"), PEERS_ONLY, log=said.append)) as b, closing(endpoint(member("a"), BRIEF)) as a:
        a.connect("b", b.address)
        sent = a.post("b", Frame("x"))
        until(lambda: said)
        b.connect("a", "")
        sent.result(PATIENCE)
        assert [frame.kind for frame in b.got] == ["x"]  # type: ignore[attr-defined]


def test_whose_run_is_over_is_a_stranger_again(member: Member) -> None:
    with closing(endpoint(member("b"), PEERS_ONLY)) as b, closing(endpoint(member("a"), BRIEF)) as a:
        a.connect("b", b.address)
        b.connect("a", "")
        a.send("b", Frame("x"))
        assert b.limits("a") == b.config.limits
        b.part(["a"])
        assert b.limits("a").max_bytes < b.config.limits.max_bytes


def test_a_frame_beyond_the_budget_ends_the_link_with_the_figures(member: Member) -> None:
    budget = MemoryBudget(1 << 20)
    with closing(endpoint(member("b"), replace(BRIEF, budget=budget))) as b, closing(endpoint(member("a"), BRIEF)) as a:
        a.connect("b", b.address)
        a.send("b", Frame("x", {}, (bytes(1 << 19),)))
        with pytest.raises(MemoryExceeded, match=r"a frame needs 8\.\d* MB, and .* of the 1\.0\d* MB that this process may use"):
            a.send("b", Frame("x", {}, (bytes(1 << 23),)))
        b.got.clear()  # type: ignore[attr-defined]
        until(lambda: budget.used == 0)
