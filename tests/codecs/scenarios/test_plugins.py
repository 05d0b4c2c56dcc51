"""Codecs that installed packages bring: what they raise, or lack, says which codec of which package it was."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from farflung.api.submission import check_names
from farflung.codecs import CODECS, Payload, decode_payload, get_codec
from farflung.codecs.dense import Identity
from farflung.errors import CodecError, InputError
from farflung.graph.ir import TensorSpec
from farflung.job.spec import CodecSpec, JobSpec, SyncSpec
from farflung.plan.model import CodecChoice
from farflung.plan.traffic import wire_bytes
from farflung.step.plugin_check import check_plugins

Install = Callable[..., None]


class Unlucky(Identity):
    name = "boom"

    def encode(self, array: Any) -> Payload:
        raise RuntimeError("no luck\ntoday")

    decode = encode  # type: ignore[assignment]

    def wire_bytes(self, numel: int, itemsize: int) -> float:
        raise RuntimeError("no scales")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts entry points where the codecs' registry reads them."""

    def put(**members: str) -> None:
        points = [EntryPoint(name, value, "farflung.codecs") for name, value in members.items()]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == "farflung.codecs" else [])
        CODECS.forget_plugins()

    module = ModuleType("unlucky")
    module.Unlucky = Unlucky  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "unlucky", module)
    yield put
    CODECS.forget_plugins()


TAIL = "; install what it lacks, or another version of it, or take another codec"
GONE = (
    "codec 'missing' of the package 'nosuchmodule:X' can't be loaded: ModuleNotFoundError: No module named 'nosuchmodule'" + TAIL
)


def test_a_package_that_cannot_be_imported_is_named_in_one_line(install: Install) -> None:
    install(missing="nosuchmodule:X")
    for use in (
        lambda: get_codec("missing"),
        lambda: check_names(JobSpec(codec=CodecSpec(name="missing"))),
    ):
        with pytest.raises(InputError) as caught:
            use()
        assert str(caught.value) == GONE
    with pytest.raises(InputError) as caught:
        check_names(JobSpec(sync=SyncSpec(strategy="ssgd", settings={"codec": "missing"})))
    assert GONE in str(caught.value)


def test_it_does_not_stand_among_the_known_ones(install: Install) -> None:
    install(missing="nosuchmodule:X", luckless="unlucky:Nothing", boom="unlucky:Unlucky")
    assert "boom" in list(CODECS)
    assert "missing" not in list(CODECS)
    with pytest.raises(InputError, match="of the package 'unlucky:Nothing' can't be loaded: AttributeError"):
        get_codec("luckless")
    with pytest.raises(InputError, match=r"unknown codec 'missin': did you mean 'sign'. known are bf16, boom, cast") as caught:
        get_codec("missin")
    assert "luckless" not in str(caught.value)


def test_a_member_that_is_no_codec(install: Install) -> None:
    install(number="unlucky:number")
    with pytest.raises(InputError, match="codec 'number' of the package 'unlucky:number' is no callable with named parameters"):
        get_codec("number")


def test_what_it_raises_names_it(install: Install) -> None:
    install(boom="unlucky:Unlucky")
    payload = Payload(codec="boom", dtype="float32", shape=(2,))
    with pytest.raises(CodecError) as caught:
        decode_payload(payload)
    assert str(caught.value) == (
        "codec 'boom' of the package 'unlucky:Unlucky' can't decode a payload: RuntimeError: no luck today" + TAIL
    )
    with pytest.raises(InputError, match="codec 'boom' of the package 'unlucky:Unlucky' can't say its wire_bytes: RuntimeError"):
        wire_bytes(CodecChoice(name="boom"), TensorSpec(shape=(7,), dtype="float32"))


def test_our_own_errors_stay_as_they_are(install: Install) -> None:
    install(boom="unlucky:Unlucky")
    with pytest.raises(ZeroDivisionError), CODECS.blame("int8", "fails"):
        1 / 0  # noqa: B018
    with pytest.raises(CodecError, match=r"^mine$"), CODECS.blame("boom", "fails"):
        raise CodecError("mine")
    assert np.array_equal(decode_payload(get_codec("int8").encode(np.zeros(3))), np.zeros(3))


@pytest.mark.parametrize(
    ("job", "kind", "name"),
    [
        (JobSpec(codec=CodecSpec(name="chop")), "codec", "chop"),
        (JobSpec(sync=SyncSpec(strategy="ssgd", settings={"codec": "chop:keep=3"})), "codec", "chop"),
        (JobSpec(sync=SyncSpec(strategy="ssgd", settings={"codec": "topk", "memory": "elephant"})), "memory", "elephant"),
        (JobSpec(sync=SyncSpec(strategy="mine")), "sync strategy", "mine"),
    ],
)
def test_a_process_that_lacks_a_plug_in_says_so(job: JobSpec, kind: str, name: str) -> None:
    with pytest.raises(InputError) as caught:
        check_plugins(job, "worker attic-pc", plans=False)
    text = str(caught.value)
    assert text.startswith(f"worker attic-pc can't take part: unknown {kind} {name!r}: ")
    assert text.endswith(
        "; a plug-in must be installed on the broker and on each worker: install the package "
        f"that brings {name!r} there, start that process again, and submit again"
    )


def test_only_a_broker_needs_the_planner() -> None:
    job = JobSpec.model_validate({"plan": {"planner": "mine"}})
    check_plugins(job, "worker attic-pc", plans=False)
    with pytest.raises(InputError, match=r"^the broker can't take part: unknown planner 'mine'"):
        check_plugins(job, "the broker", plans=True)
    check_plugins(JobSpec(codec=CodecSpec(name="auto")), "the broker", plans=True)
