"""The dashboard that a broker starts: a process of its own, so that no page can slow or end the broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from farflung.child_processes import end_all
from farflung.cli.cluster.service_log import writes_to_a_service_log
from farflung.errors import FarflungError, InputError
from farflung.extras import has_web, require_web
from farflung.thread_group import ThreadGroup
from farflung.web.serving.links import DEFAULT_ADDRESS, Dashboard, listen

__all__ = ["BrokerDashboard", "open_dashboard"]

#: Seconds until a dashboard that does not end is killed.
_PATIENCE = 5.0


class BrokerDashboard:
    """A running dashboard. ``say`` receives a line if the dashboard ends before ``close``."""

    def __init__(self, home: Path, address: str, say: Callable[[str], None]) -> None:
        """Listen at ``address``, and start the process, which inherits the socket.

        Raises:
            InputError: the address can't be listened at.
        """
        with listen(address) as listening:
            self.dashboard = Dashboard.at(listening)
            self._home, self._say, self._closed = home, say, False
            number = listening.fileno()
            command = [sys.executable, "-m", "farflung", "web", "--socket", str(number), "--home", str(home)]
            self._log = home / "dashboard.log"
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(  # noqa: S603 - this very program, without a shell
                    command, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[number], start_new_session=True
                )
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self.dashboard.secret.hex()}\n".encode())
        self._process.stdin.flush()
        self.dashboard.save(home)
        self._threads = ThreadGroup()
        self._threads.spawn("dashboard-end", self._wait)

    def invitation(self, *, secret: bool) -> str:
        """What to print. The log of a service gets no link, and no ``secret`` output: who reads it could sign in."""
        if secret or writes_to_a_service_log():
            return f"dashboard at {self.dashboard.url}; farflung web prints a link to sign in"
        return f"\nTo watch and control it in a browser, open this link (valid once, for an hour):\n  {self.dashboard.link()}"

    def _wait(self) -> None:
        code = self._process.wait()
        if not self._closed:
            self.dashboard.remove(self._home)
            self._say(f"the dashboard has ended (exit code {code}); {self._log} says why, and farflung web starts it again")

    def close(self) -> None:
        """End the process, and join the thread."""
        self._closed = True
        self.dashboard.remove(self._home)
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        end_all([self._process], _PATIENCE)
        self._threads.join()


def open_dashboard(home: Path, address: str | None, say: Callable[[str], None]) -> BrokerDashboard | None:
    """Start the dashboard of the broker in ``home``. ``address``: ``None`` is the default address, if the extra is installed.

    Raises:
        InputError: ``address`` was given, and it can't be listened at or the extra is not installed.
    """
    if address is not None:
        require_web()
        return BrokerDashboard(home, address, say)
    if not has_web():
        return None
    try:
        return BrokerDashboard(home, DEFAULT_ADDRESS, say)
    except InputError as error:
        say(f"no dashboard: {error} with --web HOST:PORT")
    except (FarflungError, OSError) as error:
        say(f"no dashboard: {error}")
    return None
