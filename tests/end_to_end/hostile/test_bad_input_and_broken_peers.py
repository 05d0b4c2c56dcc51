"""Bad input and broken peers, against a broker and workers on real connections: one clear line each, and everybody lives on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from farflung.api.submission import bundle_job, freeze
from farflung.broker.process import Broker
from farflung.broker.records.run_store import RunStore
from farflung.checkpoint import CheckpointReader
from farflung.client.connection import Client
from farflung.cluster import Topology
from farflung.engines.base import DeviceReport
from farflung.engines.torch.engine import TorchEngine
from farflung.errors import (
    ConnectionLost,
    FarflungError,
    GraphError,
    InputError,
    SecurityError,
    VersionError,
    WireError,
)
from farflung.ids import new_id
from farflung.messages.data import RunMessage, Value, ValueKey
from farflung.messages.submission import Bundle
from farflung.messages.wire_form import encode
from farflung.protocol.events import MemberReset
from farflung.step.transfer.sample_cache import packed_value
from farflung.telemetry.records import RunResult
from farflung.transports.base import Urgency
from farflung.transports.tcp.link import _Pending
from farflung.wire.frames import Frame
from farflung.worker import membership
from farflung.worker.membership import join
from farflung.worker.options import WorkerOptions
from farflung.worker.process import Worker
from farflung.worker.run_part import RunPart, Sender
from farflung.worker.training_run import TrainingRun
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, text_folder, text_job
from tests.support.runs.played_runs import PATIENCE, play, renamed
from tests.support.runs.watched_runs import watched
from tests.support.steps.small_runs import small_bundle


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    text_folder(folder)
    return folder


@pytest.fixture(scope="module")
def captured(place: Path) -> Bundle:
    return bundle_job(text_job(steps=3, evaluate={"batches": 1}, on_loss="stop"), base=place)


@pytest.fixture(scope="module")
def cluster(place: Path) -> Iterator[Loopback]:
    """One for all: a test that harms it fails the next."""
    with Loopback(place, 3) as made:
        yield made


def works(cluster: Loopback, captured: Bundle) -> None:
    """The cluster trains, with all of its workers."""
    end = play(cluster, captured)
    assert (end.result.status, end.result.cause, end.result.steps) == ("finished", "", 3)


def test_a_run_from_submit_to_result(cluster: Loopback, captured: Bundle) -> None:
    end = play(cluster, captured)
    assert end.result.status == "finished"
    assert [kind for kind in end.kinds if kind != "ready"][:4] == ["job", "planning", "planned", "started"]
    lived = next(frame.header for frame in end.frames if frame.kind == "started")
    seen_later = next(frame.header for frame in watched(cluster.client, end.run) if frame.kind == "started")
    assert lived["seconds"] == seen_later["seconds"] > 0, "who watches later is told the same time"
    assert end.kinds.count("record") == 4, "three steps and an evaluation"
    assert CheckpointReader.from_folder(end.folder / "checkpoints").manifest.step == 3
    lines = cluster.said["a"]
    assert any(line.startswith("a: joined the broker at 127.0.0.1:") for line in lines)
    for what in ("ready with stage", "training begins", "finished on this worker"):
        assert any(end.run in line and what in line for line in lines)
    assert list(watched(cluster.client, end.run)) == end.frames, "who comes late is told the same"


# -- peers that send what nobody foresaw ----------------------------------------------------------------------------------

VERDICT = {"step": 0, "finite": True, "bad": [], "losses": [], "stop": True, "save": False, "copy": False}


BATCH = {"key": ["data", 0, 0, "x"], "step": 0, "array": ["float32", [1], None]}
LENT = {"name": "w", "array": ["float32", [1], None], "last": True}
VALUE = {"key": ["value", "train", 0, 0, "x", 0, 1, False], "array": ["float32", [1], None]}


def test_a_value_larger_than_the_plan_ends_the_run_only(cluster: Loopback, captured: Bundle) -> None:
    def act(run: str) -> None:
        work = cluster.workers["b"].part
        assert isinstance(work, TrainingRun)
        assert work.executor is not None
        (edge, *_) = work.executor.setup.subgraphs[1].sends_activations
        key = ValueKey(
            phase="train",
            step=1,
            micro_batch=0,
            value=str(edge.value),
            source=edge.source,
            target=edge.target,
            gradient=False,
        )
        value = packed_value(partial(Value, run=run, key=key), np.zeros((1 << 20,), np.float32), None)
        cluster.workers["b"].endpoint.post("c", encode(value))

    end = play(cluster, captured, "started", act, steps=5000)
    assert end.result.status == "failed"
    assert "oversized value" in end.result.cause, "told by the one that sent it or by the one that refused it"
    works(cluster, captured)


def report(cluster: Loopback, name: str, frame: Frame) -> None:
    """Send ``frame`` to the broker in the session of the worker ``name``."""
    session = cluster.workers[name].session._rpc
    assert session is not None
    session.send(frame)


@pytest.mark.parametrize(
    ("sender", "frame", "says"),
    [
        ("b", Frame("value", {"key": 3}), "b sent a frame that cannot be read: bad message 'value'"),
        ("b", Frame("data", BATCH, (bytes(4),)), "b takes no part in run"),
        ("b", Frame("verdict", VERDICT), "only c decides"),
        ("b", Frame("norms", {"step": 0, "norms": {"w": None}}), "bad message 'norms'"),
    ],
)
def test_malformed_frames_end_the_run_only(cluster: Loopback, captured: Bundle, sender: str, frame: Frame, says: str) -> None:
    def act(run: str) -> None:
        cluster.workers[sender].endpoint.post("a", Frame(frame.kind, {**frame.header, "run": run}, frame.sections))

    end = play(cluster, captured, "started", act, steps=5000)
    assert end.result.status == "failed"
    assert says in end.result.cause
    assert (end.folder / "result.json").exists()
    works(cluster, captured)


@pytest.mark.parametrize(("kind", "header"), [("value", VALUE), ("lent", LENT), ("data", BATCH)])
def test_a_stranger_gets_nothing_past_the_greeting_and_the_run_goes_on(
    cluster: Loopback, captured: Bundle, kind: str, header: dict[str, object]
) -> None:
    stranger = Client(join(cluster.ticket("submit"), name=f"stranger-{kind}", role="client"))
    endpoint = stranger.endpoint()
    sent: list[Future[None]] = []
    said = cluster.said["a"]

    def act(run: str) -> None:
        work = cluster.workers["a"].part
        assert work is not None
        endpoint.connect("a", cluster.workers["a"].endpoint.address)
        sent.append(endpoint.post("a", Frame(kind, header | {"run": work.name}, (bytes(4),))))
        until(lambda: any(f"client-stranger-{kind} is no peer of the current run" in line for line in said))
        cluster.client.stop(run)

    try:
        end = play(cluster, captured, "started", act, steps=5000)
        assert not sent[0].done()
    finally:
        endpoint.close()
        stranger.close()
    with pytest.raises(ConnectionLost):
        sent[0].result(PATIENCE)
    assert (end.result.status, end.result.cause) == ("stopped", "")


def test_garbage_on_a_link_counts_as_the_loss_of_its_sender(cluster: Loopback, captured: Bundle) -> None:
    def act(run: str) -> None:
        link = cluster.workers["b"].endpoint.link_to("a", incoming=False)
        with link.changed:
            link._outbox.put(Urgency.BULK, [b"this is no frame at all, by no means"], _Pending(Future(), 36))
            link._wake_all()

    end = play(cluster, captured, "record", act, steps=5000)
    assert end.result.status == "failed"
    assert "not a frame" in end.result.cause
    works(cluster, captured)


def test_a_malformed_report_ends_the_run_only(cluster: Loopback, captured: Bundle) -> None:
    end = play(
        cluster, captured, "started", lambda run: report(cluster, "b", Frame("step", {"run": run, "step": "x"})), steps=5000
    )
    out = "worker {} is left out: it broke the protocol: "
    assert end.result.cause.startswith(out.format("b") + "bad message 'step': Expected `int`, got `str` in 'step'")
    cluster.broker.manager.handle(MemberReset(name="b"))
    end = play(cluster, captured, "started", lambda run: report(cluster, "a", Frame("dance", {"run": run})), steps=5000)
    assert end.result.cause.startswith(out.format("a") + "unknown message 'dance': reports are beat, copy-hashed, dropped, ")
    cluster.broker.manager.handle(MemberReset(name="a"))
    works(cluster, captured)


def test_garbage_in_a_session_ends_the_session_only(place: Path, captured: Bundle) -> None:
    with Loopback(place, 2, folder="apart") as own:
        own.workers["b"].session._rpc._outgoing.put(b"\x00\x01 garbage")  # type: ignore[union-attr]
        own.threads[1].join(PATIENCE)
        members = own.client.status()["members"]
        assert isinstance(members, list)
        assert [member["name"] for member in members] == ["a"]
        end = play(own, captured, workers=1)
        assert end.result.status == "finished"


def test_a_worker_that_leaves_in_mid_run_is_named(place: Path, captured: Bundle) -> None:
    with Loopback(place, 3, folder="apart") as own:
        often = captured.job.checkpoint.model_copy(update={"every": 1})
        end = play(own, captured, "checkpoint", lambda run: own.workers["b"].stop(), steps=5000, checkpoint=often)
        assert end.result.status == "failed"
        assert "worker b is gone: it left" in end.result.cause or "lost b" in end.result.cause
        step = CheckpointReader.from_folder(end.folder / "checkpoints").manifest.step
        RunStore(end.folder).checkpoints.verify(step)
        assert end.result.checkpoint.endswith(f"step-{step:010d}")
        own.threads[1].join(PATIENCE)
        assert play(own, captured, workers=2).result.status == "finished", "the others take the next run"


# -- data -----------------------------------------------------------------------------------------------------------------


def test_missing_data_are_named_with_the_worker_before_the_run_starts(place: Path, tmp_path: Path, captured: Bundle) -> None:
    with Loopback(place, 0, folder="apart") as own:
        own.add("a")
        own.add("b", data=tmp_path)
        end = play(own, captured)
        assert (end.result.status, end.kind) == ("failed", "DataError")
        assert end.result.cause.startswith("worker b: ")
        assert "corpus" in end.result.cause
        assert "started" not in end.kinds


def test_workers_with_different_data_are_named(place: Path, tmp_path: Path, captured: Bundle) -> None:
    (text_folder(tmp_path) / "part0.txt").write_text("something else")
    with Loopback(place, 0, folder="apart") as own:
        own.add("a")
        own.add("b", data=tmp_path)
        end = play(own, captured)
    assert end.kind == "DataError"
    assert "hold different data" in end.result.cause
    assert "started" not in end.kinds


def test_a_loss_that_is_no_number_stops_with_the_checkpoint_of_before(cluster: Loopback, captured: Bundle) -> None:
    job = captured.job
    wild = job.optimizer.model_copy(update={"name": "sgd", "lr": 1e30})
    end = play(cluster, captured, optimizer=wild, checkpoint=job.checkpoint.model_copy(update={"every": 1}))
    assert (end.result.status, end.kind) == ("failed", "TrainingError")
    assert "is not a finite number; lower the learning rate" in end.result.cause
    step = CheckpointReader.from_folder(end.folder / "checkpoints").manifest.step
    assert step >= 1
    RunStore(end.folder).checkpoints.verify(step)


# -- plans ----------------------------------------------------------------------------------------------------------------


def test_a_topology_that_lacks_a_joined_worker(cluster: Loopback, captured: Bundle) -> None:
    end = play(cluster, replace(captured, topology=Topology.preset("homogeneous-3")))
    assert (end.result.status, end.kind) == ("failed", "InputError")
    assert "worker 'a' is not in the submitted topology" in end.result.cause
    assert "farflung join --name" in end.result.cause


def test_an_infeasible_plan_says_which_device_lacks_how_much(place: Path, captured: Bundle) -> None:
    with Loopback(place, 2, memory={"a": 1000.0, "b": 1000.0}, folder="apart") as own:
        end = play(own, captured)
    assert end.kind == "PlanError"
    assert " a " in f" {end.result.cause} "
    assert "needs" in end.result.cause or "lacks" in end.result.cause


def test_a_run_waits_and_says_for_what(cluster: Loopback, captured: Bundle) -> None:
    bundle = renamed(captured, cluster, {"workers": 9})
    answer = cluster.client.submit(bundle)
    assert (answer["state"], answer["needs"], answer["idle"]) == ("waiting", "9", "3")
    cluster.client.stop(bundle.run)
    assert [frame.kind for frame in watched(cluster.client, bundle.run)] == ["job", "result"]


def test_a_first_stage_without_gradient_is_at_most_a_step_ahead(
    cluster: Loopback, captured: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [state.name for state in captured.graph.parameters]
    frozen = [{"match": f"^{name}$", "frozen": True} for name in names[: len(names) // 2]]
    job = text_job(steps=6, optimizer={"groups": frozen, "lr": 1e-2})
    ahead: list[int] = []
    taken = TrainingRun.on_message

    def look(self: TrainingRun, sender: Sender, message: RunMessage) -> None:
        executor = self.executor
        if executor is not None and isinstance(message, Value) and isinstance(message.key, ValueKey):
            ahead.append(message.key.step - executor.step)
        taken(self, sender, message)

    monkeypatch.setattr(TrainingRun, "on_message", look)
    graphs = {rows: freeze(graph, job) for rows, graph in captured.graphs.items()}
    end = play(cluster, replace(captured, graphs=graphs, eval_graph=None, job=job))
    assert end.result.status == "finished", end.result.cause
    assert ahead
    assert max(ahead) <= 1


# -- clients --------------------------------------------------------------------------------------------------------------


def test_unknown_runs_are_named(cluster: Loopback) -> None:
    with pytest.raises(InputError, match="there is no run 'run-x'; known runs: "):
        list(watched(cluster.client, "run-x"))
    with pytest.raises(InputError, match="there is no run 'run-x'"):
        cluster.client.stop("run-x")


@pytest.mark.parametrize("workers", [1, 3])
def test_stopping_now_ends_the_final_evaluation(cluster: Loopback, captured: Bundle, workers: int) -> None:
    busy: list[RunPart] = []

    def act(run: str) -> None:
        busy.extend(work for worker in cluster.workers.values() if (work := worker.part) is not None and work.run == run)
        cluster.client.stop(run)  # there is no further step
        with suppress(InputError):  # the workers may have ended the evaluation by then
            cluster.client.stop(run, now=True)

    evaluate = captured.job.evaluate.model_copy(update={"batches": 10**6})
    end = play(cluster, captured, "checkpoint", act, steps=1, evaluate=evaluate, workers=workers)
    assert (end.result.status, end.result.steps) == ("stopped", 1)
    assert len(busy) == workers
    for work in busy:
        work.join(PATIENCE)
        assert not work._threads.running
    works(cluster, captured)


def test_a_name_is_submitted_once(cluster: Loopback, captured: Bundle) -> None:
    bundle = renamed(captured, cluster, {"workers": 9})
    cluster.client.submit(bundle)
    with pytest.raises(InputError, match=f"run '{bundle.run}' exists already; submit again for a new name"):
        cluster.client.submit(bundle)
    with pytest.raises(InputError, match="its weights can't be sent again"):
        cluster.client.send_weights(bundle.run, [b"x"])
    cluster.client.stop(bundle.run)


@pytest.mark.parametrize("run", ["", "../up", "a/b", "x" * 101, "a b", "\u00fc"])
def test_names_are_safe_in_paths(cluster: Loopback, captured: Bundle, run: str) -> None:
    with pytest.raises(InputError, match="is not a run's name"):
        cluster.client.submit(replace(captured, run=run))
    with pytest.raises(InputError, match="is not a run's name"):
        cluster.client.send_weights(run, [b"x"])


def test_a_corrupt_graph_is_refused_by_the_broker(cluster: Loopback, captured: Bundle) -> None:
    from farflung.messages.submission import squeeze

    frame = encode(small_bundle(new_id("run")).to_message())
    for text, kind in (("{}", GraphError), (captured.graph.to_json().replace("aten.", "evil.", 1), GraphError)):
        with pytest.raises(kind):
            list(cluster.client._rpc.stream("submit", Frame("submit", frame.header, (frame.sections[0], squeeze(text)))))
    with pytest.raises(WireError, match="bad message 'stop': Expected `str`, got `int` in 'run'"):
        cluster.client._rpc.call("stop", Frame("stop", {"run": 3, "now": False}))
    works(cluster, captured)


def test_rights_follow_the_role(cluster: Loopback, captured: Bundle) -> None:
    worker_rpc = cluster.workers["a"].membership.client
    for method, frame in (
        (worker_rpc.stream, encode(captured.to_message())),
        (worker_rpc.call, Frame("stop", {"run": "x", "now": False})),
    ):
        with pytest.raises(SecurityError, match=r"'a' has no right to .*: it joined as a worker; use a submit ticket"):
            list(method(frame.kind, frame))  # type: ignore[arg-type]
    with pytest.raises(SecurityError, match="'client-client' has no right to work here: it joined as a client"):
        list(cluster.client._rpc.session("session"))


def test_the_feeding_process_is_missed(cluster: Loopback) -> None:
    """A run whose data come from the submitter ends when the submitter goes."""
    feeder = Client(join(cluster.ticket("submit"), name="feeder", role="client", key=cluster.key))
    bundle = small_bundle(new_id("run"), workers=3)
    feeder.submit(bundle)
    frames = watched(feeder, bundle.run)
    while next(frames).kind != "started":
        pass
    feeder.close()
    (*_, last) = watched(cluster.client, bundle.run)
    result = RunResult.from_json(last.header["result"])
    assert (result.status, last.header["kind"]) == ("failed", "ConnectionLost")
    assert "client-feeder, the process that submitted it and has the data, is gone" in result.cause


# -- joining --------------------------------------------------------------------------------------------------------------


def test_two_workers_with_one_name(place: Path) -> None:
    """Both joined before either was connected."""
    with Loopback(place, 0, folder="apart") as own:
        twin = Worker(join(own.ticket("join"), name="a", role="worker", key=own.key), WorkerOptions(listen="127.0.0.1:0"), print)
        own.add("a")
        try:
            with pytest.raises(InputError, match="a worker called 'a' is connected already; choose another name with --name"):
                twin.serve()
        finally:
            twin.close()


def test_no_certificate_in_the_name_of_a_connected_worker(place: Path) -> None:
    with Loopback(place, 1, folder="apart") as own:
        with pytest.raises(
            SecurityError, match="the name 'a' is taken by a worker that is connected; choose another with --name"
        ):
            join(own.ticket("join"), name="a", role="worker", key=own.key)
        own.workers["a"].stop()
        own.threads[0].join(PATIENCE)
        until(lambda: not own.members())
        own.workers["a"].close()
        until(lambda: not own.broker.sessions.serves("a"))
        own.add("a")
        assert own.members() == ["a"], "it is back, with a new certificate"


@pytest.mark.parametrize("name", ["broker", "client-a"])
def test_nobody_can_take_the_name_of_another_role(cluster: Loopback, name: str) -> None:
    with pytest.raises(SecurityError, match=f"a worker can't be called '{name}': choose another name with --name"):
        join(cluster.ticket("join"), name=name, role="worker")


def test_versions_that_do_not_fit(cluster: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "PROTOCOL_VERSION", 99)
    with pytest.raises(VersionError, match=r"this broker is farflung .* \(protocol \d+\), the other side .* \(protocol 99\)"):
        join(cluster.ticket("join"), name="new", role="worker")


def test_tickets_that_do_not_fit(cluster: Loopback) -> None:
    with pytest.raises(SecurityError, match="is for 'submit', not for 'join'"):
        join(cluster.ticket("submit"), name="new", role="worker")
    revoked = cluster.ticket("join")
    cluster.broker.tickets.revoke(revoked.ticket_id, 0.0)
    with pytest.raises(SecurityError, match="was revoked at"):
        join(revoked, name="new", role="worker")
    with pytest.raises(SecurityError, match="this broker does not know the ticket"):
        join(replace(cluster.ticket("join"), secret=bytes(16)), name="new", role="worker")


def test_a_device_that_is_not_there(cluster: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: TorchEngine, device: str, peak: float | None = None) -> DeviceReport:
        raise RuntimeError("no kernel image is available\nand more")

    monkeypatch.setattr(TorchEngine, "measure", missing)
    member = join(cluster.ticket("join"), name="new", role="worker")
    with pytest.raises(InputError, match="device 'cpu' can't be used: no kernel image is available; try --device cpu"):
        Worker(member, WorkerOptions(device="cpu"), print)
    with pytest.raises(InputError, match="unknown device 'cuda:x': known are auto, cpu, cuda, mps, xpu"):
        Worker(member, WorkerOptions(device="cuda:x"), print)
    member.client.close()


# -- the broker -----------------------------------------------------------------------------------------------------------


def test_a_port_in_use(cluster: Loopback, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot listen at .*: is the port taken"):
        Broker(tmp_path / "second", listen=cluster.broker.address)
    for address in ("nonsense", "127.0.0.1:port", ":7070"):
        with pytest.raises(InputError, match="is not an address to listen at; write host:port"):
            Broker(tmp_path / "second", listen=address)


def test_a_slow_disk_does_not_hold_the_broker(cluster: Loopback, captured: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, released, write = threading.Event(), threading.Event(), RunStore.write_result

    def slow(self: RunStore, result: RunResult) -> None:
        reached.set()
        assert released.wait(PATIENCE)
        write(self, result)

    monkeypatch.setattr(RunStore, "write_result", slow)
    first = renamed(captured, cluster, {"workers": 9})
    cluster.client.submit(first)
    stopping = threading.Thread(target=cluster.client.stop, args=(first.run,))
    stopping.start()
    assert reached.wait(PATIENCE)
    runs = cluster.client.status()["runs"]
    assert isinstance(runs, list)
    assert runs[-1]["state"] == "stopped"
    released.set()
    stopping.join()


def test_a_full_disk_ends_the_run_with_its_cause(cluster: Loopback, captured: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    from farflung.errors import DataError
    from farflung.telemetry import RunFolder

    def full(self: RunFolder, record: object) -> None:
        raise DataError("cannot write metrics.jsonl: No space left on device; free space or choose another folder")

    monkeypatch.setattr(RunFolder, "append", full)
    end = play(cluster, captured, steps=5000)
    assert (end.kind, end.result.status) == ("DataError", "failed")
    assert end.result.cause.startswith("cannot write metrics.jsonl: No space left on device")
    monkeypatch.undo()


def test_a_broker_that_is_ended_says_so(place: Path, captured: Bundle) -> None:
    said: list[str] = []
    own = Loopback(place, 2, folder="apart", say=said.append)
    ended: list[threading.Thread] = []

    def end_it(run: str) -> None:
        ended.append(threading.Thread(target=own.broker.close))
        ended[0].start()

    with own:
        end = play(own, captured, "record", end_it, steps=5000)
        ended[0].join(PATIENCE)
        assert (end.result.cause, end.kind) == ("the broker was ended", "ConnectionLost")
        for thread in own.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        with pytest.raises(ConnectionLost, match="cannot reach the broker at"):
            own.client.status()
    assert any("failed after" in line and "the broker was ended" in line for line in said)


def test_errors_have_exit_codes_that_scripts_can_tell_apart() -> None:
    kinds: list[type[FarflungError]] = [InputError, GraphError, WireError, SecurityError, VersionError, ConnectionLost]
    assert len({kind.exit_code for kind in kinds}) == len(kinds)


def test_one_broker_to_a_folder(tmp_path: Path) -> None:
    first = Broker(tmp_path, listen="127.0.0.1:0")
    try:
        with pytest.raises(InputError, match=r"another broker uses the folder .*: end it, or give this one its own with --home"):
            Broker(tmp_path, listen="127.0.0.1:0")
    finally:
        first.close()
    Broker(tmp_path, listen="127.0.0.1:0").close()


def test_a_run_that_is_over_cannot_be_stopped(cluster: Loopback, captured: Bundle) -> None:
    end = play(cluster, captured)
    assert end.result.status == "finished"
    with pytest.raises(InputError, match=rf"run '{end.run}' is over already: finished"):
        cluster.client.stop(end.run)
