"""Requests to a host and its answers."""

from __future__ import annotations

import pytest

from farflung.errors import InputError, VersionError
from farflung.launchers.host_requests import (
    AskBroker,
    HostedProcess,
    ProcessStart,
    StartProcesses,
    StopProcesses,
    encode,
    read_processes,
    read_request,
)


def test_requests_survive_the_way() -> None:
    start = ProcessStart(name="a", words=("join",), ticket="farflung1-secret", environment={"A": "1"})
    for request in (
        StartProcesses(cluster="lab", processes=(start,)),
        StopProcesses(cluster="lab"),
        AskBroker(cluster="c", words=()),
    ):
        assert read_request(encode(request)) == request


def test_a_ticket_is_not_in_the_text_of_a_request() -> None:
    start = ProcessStart(name="a", words=("join",), ticket="farflung1-secret")
    assert "secret" not in f"{start!r} {StartProcesses(cluster='lab', processes=(start,))!r}"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"do":"fly","cluster":"a"}', '{"do":"list"}', '{"do":"list","cluster":"a","more":1}']
)
def test_what_is_no_request_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"this is no request to a host: .*; farflung up sends requests, and both machines need"):
        read_request(text)


def test_answers_may_follow_what_a_login_prints() -> None:
    answer = [HostedProcess(name="broker", running=True)]
    assert list(read_processes(f"Welcome!\n{encode(answer)}\n", "host a")) == answer
    with pytest.raises(VersionError, match="host a: the answer 'Welcome!' is not that of farflung host: install this version"):
        read_processes("Welcome!\n", "host a")
