"""Large documents are read in a process of their own first, which has limits and may die."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from farflung.broker.requests import document_check
from farflung.broker.requests.document_check import check_documents
from farflung.errors import GraphError, InputError
from farflung.messages.calls import Submit
from farflung.messages.submission import squeeze
from farflung.units import Bytes
from tests.support.network.quiet import until
from tests.support.steps.small_runs import small_bundle


def _large(count: int, operators: object) -> Submit:
    """The small bundle, with a graph that repeats an operator ``count`` times."""
    message = small_bundle().to_message()
    document = json.loads(small_bundle().graph.to_json())
    document["ops"] = [operators] * count
    sections = tuple(
        squeeze(json.dumps(document)) if name.startswith("graph-") else section
        for name, section in zip(message.documents, message.sections, strict=True)
    )
    return Submit(bundle=message.bundle, run=message.run, documents=message.documents, emulate=False, notes={}, sections=sections)


def test_a_small_job_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", None)
    check_documents(small_bundle().to_message())


def test_an_error_in_a_large_document_arrives_as_it_was() -> None:
    with pytest.raises(GraphError, match="operator 0 must be dict, not list"):
        check_documents(_large(300_000, []))


def test_a_process_that_dies_is_an_error_for_the_submitter() -> None:
    with pytest.raises(InputError, match=r"can't be read with 100 MB of memory in .*; submit a smaller graph"):
        check_documents(_large(300_000, []), memory=Bytes(100_000_000))


class Turns:
    """A lock that whoever waits longest has next."""

    def __init__(self) -> None:
        self._changed, self._held = threading.Condition(), False
        self.waiting: list[threading.Thread] = []

    def __enter__(self) -> None:
        with self._changed:
            self.waiting.append(threading.current_thread())
            self._changed.wait_for(lambda: not self._held and self.waiting[0] is threading.current_thread())
            self._held = True
            self.waiting.pop(0)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()


def test_submissions_of_one_ticket_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten checks of minutes each: the submission of another ticket waits for one of them."""
    begun, free, order = threading.Event(), threading.Event(), list[str]()
    one = Turns()

    def check(command: object, **given: Any) -> subprocess.CompletedProcess[bytes]:
        begun.set()
        assert free.wait(60)
        order.append("bob" if b"bob" in given["input"] else "ann")
        return subprocess.CompletedProcess([], 0, b"", b"")

    monkeypatch.setattr(subprocess, "run", check)
    monkeypatch.setattr(document_check, "parses_quickly", lambda request: False)
    monkeypatch.setattr(document_check, "_one", one)
    small = small_bundle().to_message()
    threads = [threading.Thread(target=check_documents, args=(small, "t1")) for _ in range(10)]
    threads[0].start()
    assert begun.wait(60)
    threads[1:] = [threading.Thread(target=check_documents, args=(replace(small, run="bob"), "t2")), *threads[1:]]
    for thread in threads[1:]:
        thread.start()
    until(lambda: len(one.waiting) == 1)  # bob's; the others wait for the first one of their own ticket
    free.set()
    for thread in threads:
        thread.join()
    assert order.index("bob") == 1, order
