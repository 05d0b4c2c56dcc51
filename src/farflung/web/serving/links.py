"""The address of a dashboard, the links with which people sign in, and the file through which this machine's users get more.

Without NiceGUI: the broker imports it.
"""

from __future__ import annotations

import json
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path

from farflung.broker.requests.dashboard_tunnel import DASHBOARD_FILE
from farflung.errors import FarflungError, InputError
from farflung.security.files import make_private_folder, read_private, write_private
from farflung.transports.addresses import host_and_port, is_loopback, listen_at, reachable_host
from farflung.web.serving.sign_in import Role, make_token

__all__ = ["DEFAULT_ADDRESS", "Dashboard", "listen", "running_dashboard"]

DEFAULT_ADDRESS = "127.0.0.1:7080"
_FREE = "127.0.0.1:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A dashboard that listens. ``url`` ends without a slash. Whoever knows ``secret`` can make links for every role."""

    url: str
    secret: bytes = field(repr=False)

    @classmethod
    def at(cls, listening: socket.socket) -> Dashboard:
        """Return a new dashboard at ``listening``: with TLS unless only this machine can reach it."""
        own = str(listening.getsockname()[0])
        host = reachable_host("[::]" if own == "::" else own)
        scheme = "http" if is_loopback(own) else "https"
        return cls(url=f"{scheme}://{host_and_port(host, listening.getsockname()[1])}", secret=secrets.token_bytes(32))

    def link(self, role: Role = Role.OWNER) -> str:
        """Return a link that signs one browser in, once. The token is in the fragment, which browsers do not send."""
        return f"{self.url}/sign-in#{make_token(self.secret, role)}"

    def save(self, folder: Path) -> None:
        """Let ``running_dashboard`` find it. Only this user can read the file."""
        make_private_folder(folder)
        write_private(folder / DASHBOARD_FILE, json.dumps({"url": self.url, "secret": self.secret.hex()}).encode())

    def remove(self, folder: Path) -> None:
        """Undo ``save``, unless another dashboard has been saved since."""
        if _saved(folder) == self:
            (folder / DASHBOARD_FILE).unlink(missing_ok=True)


def running_dashboard(folder: Path) -> Dashboard | None:
    """Return the dashboard that serves the broker's ``folder``, ``None`` if none answers."""
    found = _saved(folder)
    if found is None:
        return None
    host, _, port = found.url.partition("://")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
    except OSError:
        return None
    return found


def _saved(folder: Path) -> Dashboard | None:
    if not (folder / DASHBOARD_FILE).is_file():
        return None
    try:
        body = json.loads(read_private(folder / DASHBOARD_FILE))
        return Dashboard(url=str(body["url"]), secret=bytes.fromhex(body["secret"]))
    except (FarflungError, ValueError, KeyError, TypeError):
        return None


def listen(address: str | None) -> socket.socket:
    """Return a socket that listens at ``address`` (``HOST:PORT``; port 0: any free port).

    ``None``: at the default address, or at a free port of this machine if the default port is in use.

    Raises:
        InputError: it is no address, or the port is in use.
    """
    if address is None:
        try:
            return listen(DEFAULT_ADDRESS)
        except InputError:
            return listen(_FREE)
    return listen_at(address, "the dashboard's address", DEFAULT_ADDRESS)
