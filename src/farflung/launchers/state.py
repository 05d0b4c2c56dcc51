"""What this machine knows about a cluster that is up, so that ``down``, ``scale`` and ``logs`` work later."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from farflung.errors import InputError
from farflung.launchers.cluster_file import make_cluster
from farflung.launchers.cluster_spec import ClusterSpec
from farflung.security.files import make_private_folder, read_private, write_private
from farflung.security.user_home import home

__all__ = ["ClusterFolder", "ClusterState", "known_clusters"]

_STATE = "cluster.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A cluster that is up. ``count``: the number of workers that was wanted last."""

    cluster: ClusterSpec
    count: int


class ClusterFolder:
    """The private folder of the cluster ``name`` on this machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.place = home() / "clusters" / name

    @property
    def ticket(self) -> Path:
        """The file of the owner's ticket, for ``--ticket @FILE``."""
        return self.place / "owner-ticket"

    def read(self) -> ClusterState | None:
        """Return the state (``None``: the cluster is not up).

        Raises:
            InputError: the file is damaged, or of a provider that is not installed any more.
        """
        path = self.place / _STATE
        if not path.exists():
            return None
        try:
            document = json.loads(read_private(path))
            cluster, count = document["cluster"], int(document["count"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged ({error}): stop the processes by hand, and remove the file") from None
        return ClusterState(cluster=make_cluster(cluster, source=str(path)), count=count)

    def state(self) -> ClusterState:
        """Return the state.

        Raises:
            InputError: the cluster is not up, or the file is damaged.
        """
        state = self.read()
        if state is None:
            known = ", ".join(known_clusters()) or "none"
            raise InputError(f"the cluster {self.name!r} is not up: farflung up starts it (up on this machine: {known})")
        return state

    def write(self, state: ClusterState) -> None:
        """Store the state."""
        document = {"cluster": state.cluster.model_dump(mode="json", exclude_unset=True), "count": state.count}
        write_private(self.place / _STATE, json.dumps(document, indent=1).encode())

    def keep_ticket(self, ticket: str) -> None:
        """Store the owner's ticket. Only this user can read the file."""
        write_private(self.ticket, ticket.encode())

    def forget(self) -> None:
        """Remove the state and the ticket."""
        self.ticket.unlink(missing_ok=True)
        (self.place / _STATE).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one command at a time change the cluster.

        Raises:
            InputError: another command changes it now.
        """
        make_private_folder(self.place)
        with (self.place / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"another command starts or stops the cluster {self.name!r} now: wait until it has ended"
                ) from None
            yield


def known_clusters() -> list[str]:
    """Return the names of the clusters that this user has started from this machine."""
    folder = home() / "clusters"
    return sorted(path.parent.name for path in folder.glob(f"*/{_STATE}"))
