"""Versions in the handshake: what is refused, what is a warning, and what nobody needs to know."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung import __version__
from farflung.engines.torch.engine import TorchEngine
from farflung.errors import VersionError
from farflung.messages import versions
from farflung.messages.versions import check_versions, mixed_engines, version_warnings
from farflung.protocol.events import Offer
from farflung.protocol.members import Member
from farflung.wire.frames import Frame
from farflung.worker import device_measurement, membership
from farflung.worker.membership import join
from farflung.worker.options import WorkerOptions
from farflung.worker.process import Worker
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, text_job

MAJOR, MINOR, PATCH = (int(part) for part in __version__.split("."))

ODD = (
    "torch 2.14.1, most workers have torch 2.13.0: runs that use both are not bit-equal to a plain loop; "
    "install torch==2.13.0 there"
)


def member(name: str, engine: str = "torch 2.13.0", farflung: str = __version__) -> Member:
    told = {"engine": engine, "farflung": farflung}
    return Member(name=name, address="", offer=Offer(memory=1.0, speed=1.0, versions=told))


@pytest.mark.parametrize(
    ("version", "protocol", "remedy"),
    [
        (f"{MAJOR}.{MINOR + 1}.0", 6, f"run on the broker's machine: pip install farflung=={MAJOR}.{MINOR + 1}.0"),
        (f"{MAJOR + 1}.{MINOR}.0", 7, f"run on the broker's machine: pip install farflung=={MAJOR + 1}.{MINOR}.0"),
        (__version__, 5, f"run on the other machine: pip install farflung=={__version__}"),
        ("0.0.9", 6, f"run on the other machine: pip install farflung=={__version__}"),
        (None, None, f"run on the other machine: pip install farflung=={__version__}"),
    ],
)
def test_another_minor_version_or_protocol_is_refused(version: str | None, protocol: int | None, remedy: str) -> None:
    with pytest.raises(VersionError) as caught:
        check_versions(Frame("join", {"version": version, "protocol": protocol}), 6)
    text = str(caught.value)
    assert text.startswith(f"this broker is farflung {__version__} (protocol 6), the other side is farflung {version} (")
    assert text.endswith(f"major and minor version must be equal; {remedy}")


def test_another_engine_is_changed_by_an_option_of_join() -> None:
    (text,) = version_warnings([member("a"), member("b"), member("c", "jax 0.10.2")])["c"]
    assert text.endswith("runs that use both are not bit-equal to a plain loop; join with --engine torch there")


def test_another_patch_is_let_in() -> None:
    check_versions(Frame("join", {"version": f"{MAJOR}.{MINOR}.{PATCH + 1}", "protocol": 6}), 6)


def test_the_broker_refuses_another_minor_version_at_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Loopback(tmp_path, 0) as cluster:
        monkeypatch.setattr(membership, "__version__", f"{MAJOR}.{MINOR + 1}.0")
        with pytest.raises(VersionError, match="major and minor version must be equal; run on the broker's machine: pip install"):
            join(cluster.ticket("join"), name="new", role="worker")


@pytest.mark.parametrize("role", ["worker", "client"])
def test_an_older_minor_version_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    with Loopback(tmp_path, 0) as cluster:
        monkeypatch.setattr(versions, "__version__", f"{MAJOR}.{MINOR + 1}.0")  # the broker's
        scope = {"worker": "join", "client": "submit"}[role]
        with pytest.raises(VersionError, match=rf"run on the other machine: pip install farflung=={MAJOR}.{MINOR + 1}.0"):
            join(cluster.ticket(scope), name="new", role=role)


@pytest.mark.parametrize(("minor", "where"), [(MINOR + 1, "the broker's machine"), (MINOR - 1, "the other machine")])
def test_a_worker_that_kept_its_certificate_is_refused_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minor: int, where: str
) -> None:
    """Its ticket has expired and it does not join again: the broker was upgraded, or the worker."""
    other = f"{MAJOR}.{minor}.0"
    with Loopback(tmp_path, 0) as cluster:
        member = join(cluster.ticket("join"), name="old", role="worker", key=cluster.key)
        monkeypatch.setattr(device_measurement, "own_versions", lambda engine: {"farflung": other, "engine": engine})
        worker = Worker(member, WorkerOptions(listen="127.0.0.1:0", memory=4e9, data=tmp_path), lambda line: None)
        try:
            with pytest.raises(VersionError, match=f"the other side is farflung {other}: .* run on {where}: pip install"):
                worker.serve()
        finally:
            worker.close()
            worker.carried.device.engine.end()
        assert "old" not in cluster.members()


def test_the_engine_of_the_minority_is_a_warning() -> None:
    odd = member("c", "torch 2.14.1+cpu")
    assert version_warnings([member("a"), member("b", "torch 2.13.0+cu128"), odd]) == {"c": [ODD]}
    assert version_warnings([member("a"), member("b"), member("old", "")]) == {}


def test_another_patch_is_a_warning() -> None:
    told = version_warnings([member("a"), member("b", farflung="0.0.1")])
    assert told == {"b": [f"farflung 0.0.1, the broker has {__version__}; install farflung=={__version__} there"]}


def test_a_run_on_mixed_engines_is_warned() -> None:
    assert mixed_engines([member("a"), member("b", "torch 2.13.0+cpu")]) == ""
    assert mixed_engines([member("a"), member("b", "torch 2.14.1")]) == (
        "warning: engine versions differ (torch 2.13.0 on a; torch 2.14.1 on b): the result is not bit-equal to that of a "
        "plain loop; install one version, or choose one with limits.engines"
    )


def test_status_and_the_run_tell_of_another_torch(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Loopback(home, 2) as cluster:
        assert [m["warnings"] for m in cluster.client.status()["members"]] == [[], []]  # type: ignore[attr-defined]
        monkeypatch.setattr(TorchEngine, "version", lambda self: "torch 9.9.9")
        cluster.add("c")
        until(lambda: any("c: warning: torch 9.9.9, most workers have torch" in text for text in cluster.said["c"]))
        members = cluster.client.status()["members"]
        assert isinstance(members, list)
        assert [len(one["warnings"]) for one in members] == [0, 0, 1]
        assert members[2]["versions"]["engine"] == "torch 9.9.9"
        assert set(members[0]["versions"]) == {"farflung", "engine", "python", "platform"}
        found = cluster.run(text_job(steps=2))
    assert found.result.status == "finished"
    notes = [str(frame.header["text"]) for frame in found.frames if frame.kind == "note"]
    assert any("engine versions differ" in text and "torch 9.9.9 on c" in text for text in notes), notes
