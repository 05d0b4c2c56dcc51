"""The what-if sessions of all browsers. Each may run a planning process, so there are only a few at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from farflung.api.what_if import View, WhatIfSession
from farflung.errors import InputError

__all__ = ["WhatIfSessions"]


class WhatIfSessions:
    """Opens sessions, at most ``most`` at a time. Any thread may call."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: set[WhatIfSession] = set()

    def open(self, publish: Callable[[View], None]) -> WhatIfSession:
        """Return a new session; ``publish`` receives its views on a thread of the session.

        Raises:
            InputError: too many are open.
        """
        with self._lock:
            if len(self._open) >= self._most:
                raise InputError(
                    f"{self._most} browsers evaluate clusters on this machine now: close one of these pages, or use farflung plan"
                )
            session = WhatIfSession(publish)
            self._open.add(session)
        return session

    def close(self, session: WhatIfSession) -> None:
        """End a session."""
        with self._lock:
            self._open.discard(session)
        session.close()
