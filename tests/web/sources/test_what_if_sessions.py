"""A dashboard has few what-if sessions at a time."""

from __future__ import annotations

import pytest

from farflung.errors import InputError
from farflung.web.sources.what_if_sessions import WhatIfSessions


def test_sessions_are_few_and_end() -> None:
    sessions = WhatIfSessions(most=2)
    first, second = (sessions.open(lambda view: None) for _ in range(2))
    with pytest.raises(InputError, match="2 browsers evaluate clusters on this machine now: close one of these pages"):
        sessions.open(lambda view: None)
    sessions.close(first)
    third = sessions.open(lambda view: None)
    for session in (second, third):
        sessions.close(session)
    assert not any(session.running for session in (first, second, third))
