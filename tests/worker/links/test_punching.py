"""A worker's part in hole punching: with a real broker on the loopback, and what it refuses to do."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farflung.broker.links.hole_punching import HolePunching
from farflung.errors import ConnectionLost
from farflung.messages.commands import Observe, Punch
from farflung.messages.reports import PunchEnded, PunchWanted
from farflung.messages.schema import Message
from farflung.telemetry import RunFolder
from farflung.transports.base import LinkStatistics
from farflung.transports.connection_gate import ConnectionGate
from farflung.transports.punching.observer import AddressObserver
from farflung.worker.links import punching
from farflung.worker.links.punching import Punching
from tests.support.network.quiet import PATIENCE, until
from tests.support.runs.loopback import Loopback, plainly, same, states_of, text_folder, text_job

#: An address of this machine at which no worker listens.
ELSEWHERE = "127.0.0.2"


def test_workers_of_which_neither_can_be_dialled_train_bit_for_bit_and_punch_again_after_a_break(tmp_path: Path) -> None:
    text_folder(tmp_path)
    with Loopback(tmp_path, 0) as own:
        a, b = (own.add(name, advertise=ELSEWHERE) for name in "ab")
        job = text_job(steps=3, plan={"planner": "equal_number"})
        finished = own.run(job)
        assert finished.result.status == "finished", finished.result.cause
        module, plain = plainly(job, own.home)
        assert tuple(finished.losses) == tuple(plain.losses)
        kept, trained = states_of(finished), module.state_dict()
        assert same(kept, {name: trained[name].numpy() for name in kept}) == []
        assert RunFolder(finished.folder).read_relayed() == []
        assert own.broker.network.reachability.holes.among("ab") == [("a", "b")]
        assert a.endpoint.drop("b", "as a broken network would") > 0  # type: ignore[attr-defined]
        a.endpoint.connect("b", "hole-punching")
        b.endpoint.connect("a", "")
        until(lambda: a.endpoint.statistics()["b"].resumed > 0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pair_that_cannot_punch_any_more_gets_a_relay_and_no_step_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(punching, "_PATIENCE", 1.0)
    text_folder(tmp_path)
    with Loopback(tmp_path, 0) as own, ThreadPoolExecutor(1) as pool:
        a, _, _ = own.add("a", advertise=ELSEWHERE), own.add("b", advertise=ELSEWHERE), own.add("r")
        job = text_job(steps=60, plan={"planner": "equal_number"})
        run = pool.submit(own.run, job)
        until(lambda: a.endpoint.statistics().get("b", LinkStatistics()).frames_sent > 20)
        monkeypatch.setattr(own.broker.network.punching, "_allowed", lambda name, peer: False)
        assert a.endpoint.drop("b", "as a broken network would") > 0  # type: ignore[attr-defined]
        finished = run.result(200.0)
        assert finished.result.status == "finished", finished.result.cause
        kept, trained = states_of(finished), plainly(job, own.home)[0].state_dict()
        assert same(kept, {name: trained[name].numpy() for name in kept}) == []
        until(lambda: RunFolder(finished.folder).read_relayed())
        assert own.broker.network.reachability.holes.among("ab") == []


class Rendezvous:
    """A broker's gate, and two workers' parts; commands and reports go from hand to hand."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, Message]] = []
        self.taken: list[socket.socket] = []
        self.begun: list[Observe] = []
        self.log: list[str] = []
        self.broker = HolePunching(self.command, lambda one, other: one + other in ("ab", "az"), lambda one, other: True)
        observer = AddressObserver(self.broker.seen, lambda port: port)
        server = socket.create_server(("127.0.0.1", 0))
        self.gate = ConnectionGate(server, lambda sock, place: sock.close(), tls=True, observe=observer.serve)
        self.thread = threading.Thread(target=self.gate.run)
        self.thread.start()
        place = f"127.0.0.1:{server.getsockname()[1]}"
        self.ends = {name: Punching(place, self.reporter(name), self.taken.append, self.log.append) for name in "ab"}

    def reporter(self, name: str) -> object:
        def report(message: Message) -> None:
            self.reports.append((name, message))
            if isinstance(message, PunchWanted):
                self.broker.request(name, message.peer)

        return report

    def command(self, name: str, message: Message) -> None:
        end = self.ends.get(name)
        if end is not None and isinstance(message, Observe):
            end.begin(message)
            self.begun.append(message)
        elif end is not None and isinstance(message, Punch):
            end.go(message)

    def close(self) -> None:
        for end in self.ends.values():
            end.close()
            end.join()
        self.gate.close()
        self.thread.join()
        for sock in self.taken:
            sock.close()


@pytest.fixture
def rendezvous() -> object:
    made = Rendezvous()
    yield made
    made.close()


def test_both_ends_get_the_same_connection(rendezvous: Rendezvous) -> None:
    with rendezvous.ends["a"].dial("b") as near:
        until(lambda: rendezvous.taken)
        far = rendezvous.taken[0]
        assert near.getpeername() == far.getsockname()
        near.sendall(b"hello")
        far.settimeout(PATIENCE)
        assert far.recv(5) == b"hello"
    assert rendezvous.reports == [("a", PunchWanted(peer="b")), ("a", PunchEnded(peer="b", reached=True))]


def test_a_peer_that_does_not_come_is_an_error_in_bounded_time(rendezvous: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punching, "_PATIENCE", 0.3)
    with pytest.raises(ConnectionLost, match="cannot reach z by hole punching: no connection within 0 s"):
        rendezvous.ends["a"].dial("z")
    assert rendezvous.reports[-1] == ("a", PunchEnded(peer="z", reached=False))


def test_a_worker_that_leaves_waits_for_nobody(rendezvous: Rendezvous) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rendezvous.ends["a"].dial, "z")
        until(lambda: rendezvous.reports)
        rendezvous.ends["a"].close()
        with pytest.raises(ConnectionLost, match="this worker is leaving"):
            waiting.result(PATIENCE)
    with pytest.raises(ConnectionLost, match="cannot reach b by hole punching: this worker is leaving"):
        rendezvous.ends["a"].dial("b")


def test_a_worker_dials_nobody_without_an_observation_of_its_own(rendezvous: Rendezvous) -> None:
    with socket.create_server(("127.0.0.1", 0)) as victim:
        victim.setblocking(False)
        rendezvous.ends["b"].go(Punch(number=7, address=f"127.0.0.1:{victim.getsockname()[1]}"))
        rendezvous.ends["b"].close()
        rendezvous.ends["b"].join()
        with pytest.raises(BlockingIOError):
            victim.accept()


def test_attempts_at_once_are_limited(rendezvous: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punching, "_MOST_AT_ONCE", 0)
    monkeypatch.setattr(punching, "_PATIENCE", 0.3)
    with pytest.raises(ConnectionLost, match="by hole punching"):
        rendezvous.ends["a"].dial("b")
    assert rendezvous.taken == []


def test_a_broker_that_cannot_observe_is_a_line_in_the_log(rendezvous: Rendezvous) -> None:
    rendezvous.gate.close()
    rendezvous.thread.join()
    rendezvous.ends["b"].begin(Observe(number=1, peer="a", token="00" * 16, dials=False))
    rendezvous.ends["b"].join()
    assert "no hole to a could be punched" in rendezvous.log[0]
    assert "does not say from which address it sees this machine" in rendezvous.log[0]


def test_two_who_dial_the_same_peer_take_turns(rendezvous: Rendezvous) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(rendezvous.ends["a"].dial, "b") for _ in range(2)]
        with found[0].result(PATIENCE) as one, found[1].result(PATIENCE) as other:
            assert one.getsockname() != other.getsockname()


def test_a_peer_behind_a_closed_door_is_an_error_before_patience_ends(
    rendezvous: Rendezvous, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(punching, "_PUNCH_SECONDS", 0.3)
    monkeypatch.setattr(punching, "_PATIENCE", 10 * PATIENCE)
    end = rendezvous.ends["a"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(end.dial, "z")
        until(lambda: rendezvous.begun)
        with socket.socket() as nobody:  # it has a port, so nobody else takes it, and does not listen
            nobody.bind(("127.0.0.1", 0))
            end.go(Punch(number=rendezvous.begun[0].number, address=f"127.0.0.1:{nobody.getsockname()[1]}"))
            with pytest.raises(ConnectionLost, match="no hole to z could be punched: no connection within 0 s"):
                waiting.result(PATIENCE)


def test_an_attempt_that_ends_late_does_not_end_the_next_dial(rendezvous: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punching, "_ANSWER_SECONDS", 10 * PATIENCE)
    monkeypatch.setattr(punching, "_PUNCH_SECONDS", 0.1)
    monkeypatch.setattr(punching, "_PATIENCE", 0.1)
    end = rendezvous.ends["a"]
    with pytest.raises(ConnectionLost, match="no connection within 0 s"):
        end.dial("z")
    monkeypatch.setattr(punching, "_PATIENCE", 10 * PATIENCE)
    with ThreadPoolExecutor(1) as pool, socket.socket() as nobody, socket.create_server(("127.0.0.1", 0)) as peer:
        nobody.bind(("127.0.0.1", 0))
        waiting = pool.submit(end.dial, "z")
        until(lambda: len(rendezvous.begun) == 2)
        end.go(Punch(number=rendezvous.begun[0].number, address=f"127.0.0.1:{nobody.getsockname()[1]}"))
        until(lambda: [thread.name for thread in threading.enumerate()].count("punch-z") == 1)
        monkeypatch.setattr(punching, "_PUNCH_SECONDS", PATIENCE)
        end.go(Punch(number=rendezvous.begun[1].number, address=f"127.0.0.1:{peer.getsockname()[1]}"))
        waiting.result(PATIENCE).close()


def test_one_peer_takes_few_attempts(rendezvous: Rendezvous) -> None:
    end = rendezvous.ends["b"]
    for number in range(10):
        end.begin(Observe(number=number, peer="a", token="00" * 16, dials=False))
    end.begin(Observe(number=10, peer="c", token="00" * 16, dials=False))
    end.begin(Observe(number=11, peer="d", token="00" * 16, dials=True))  # nobody here wants it
    end.close()
    end.join()
    assert sorted(line.split(" could")[0] for line in rendezvous.log) == [*["no hole to a"] * 4, "no hole to c"]


def test_few_connections_of_an_attempt_are_greeted(rendezvous: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punching, "punch", lambda port, address, seconds, stopped: (socket.socket() for _ in range(100)))
    end = rendezvous.ends["b"]
    end.begin(Observe(number=1, peer="a", token="00" * 16, dials=False))
    end.go(Punch(number=1, address="127.0.0.1:4001"))
    end.join()
    assert len(rendezvous.taken) == 4


def test_a_broker_that_does_not_continue_ends_an_attempt(rendezvous: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punching, "_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(punching, "_PATIENCE", 10 * PATIENCE)
    with pytest.raises(ConnectionLost, match="no hole to z could be punched: the broker did not continue"):
        rendezvous.ends["a"].dial("z")
