"""All that pages read, refreshed once a second by one task for all browsers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farflung.clock import monotonic
from farflung.errors import FarflungError
from farflung.telemetry import RunFolder
from farflung.web.sources.broker_poll import BrokerPoll, ClusterState
from farflung.web.sources.live_run import LiveRun
from farflung.web.sources.run_analysis import Analyses

__all__ = ["Sources"]

_log = logging.getLogger(__name__)
#: Seconds between two readings, and how long a run is read after a page asked for it last. Pages promise an update each second.
INTERVAL, ATTENTION = 0.9, 10.0
#: States of runs in progress.
_ACTIVE = ("planning", "preparing", "running", "stopping")
#: Seconds after which a run that no page shows is forgotten.
_MEMORY = 600.0
#: Runs of lists that are remembered.
_SUMMARIES = 500


class Sources:
    """The broker's status, if there is a broker, and the runs in folders of this machine.

    Pages call on the event loop. ``refresh`` reads files and calls the broker on a thread.
    """

    def __init__(self, *, poll: BrokerPoll | None = None, runs: Path | None = None, folders: Sequence[Path] = ()) -> None:
        """``runs``: the broker's folder of runs. ``folders``: runs that are shown without a broker."""
        self._poll, self._runs = poll, runs
        self._lock = threading.Lock()
        self._shown: dict[str, LiveRun] = {}
        #: Until when a run is read (``time.monotonic``).
        self._wanted: dict[str, float] = {}
        for folder in folders:
            name = folder.name if folder.name not in self._shown else str(folder)
            self._shown[name] = LiveRun(folder, name)
            self._wanted[name] = float("inf")
        self.analyses = Analyses()
        self._summaries: dict[str, LiveRun] = {}

    @property
    def has_broker(self) -> bool:
        """Whether pages about the cluster make sense."""
        return self._poll is not None

    @property
    def home(self) -> Path | None:
        """The broker's folder, if it is on this machine."""
        return None if self._runs is None else self._runs.parent

    @property
    def cluster(self) -> ClusterState:
        """The cluster as the broker reported it last."""
        return ClusterState() if self._poll is None else self._poll.state

    @property
    def names(self) -> list[str]:
        """All runs, the newest last."""
        found = list(self._shown) if self._runs is None else []
        if self._runs is not None and self._runs.is_dir():
            found += sorted(place.name for place in self._runs.iterdir() if (place / "job.json").is_file())
        return found

    def _has(self, name: str) -> bool:
        """Whether the broker has a run called ``name``, which is text from outside: never a path."""
        plain = name == Path(name).name and name not in ("", "..")
        return self._runs is not None and plain and (self._runs / name / "job.json").is_file()

    def status(self, run: str) -> Mapping[str, Any] | None:
        """What the broker reports about a run, ``None`` if it does not know the run any more."""
        return next((one for one in self.cluster.runs if one["run"] == run), None)

    def summary(self, name: str) -> LiveRun:
        """Return a run of ``names`` for a list: job and result are read, the metrics are not."""
        with self._lock:
            found = self._shown.get(name) or self._summaries.get(name)
        if found is None:
            assert self._runs is not None
            found = self._summaries[name] = LiveRun(self._runs / name)
            if len(self._summaries) > _SUMMARIES:
                del self._summaries[next(iter(self._summaries))]
        found.refresh_summary()
        return found

    def active(self) -> list[LiveRun]:
        """The runs in progress whose folders are here."""
        names = [str(run["run"]) for run in self.cluster.runs if run["state"] in _ACTIVE]
        return [run for run in map(self.run, names) if run is not None]

    def regions(self) -> Mapping[str, str]:
        """The region of each machine: as the topology of a run in progress says, else as the machine's owner does."""
        found = {str(one["name"]): str(one["region"]) for one in self.cluster.members if one.get("region")}
        for run in self.active():
            if run.topology is not None:
                found |= {device.name: device.region for device in run.topology.devices if device.region}
        return found

    def folder(self, name: str) -> RunFolder | None:
        """Return the folder of a run, without reading it. ``None``: this machine has no such run."""
        with self._lock:
            found = self._shown.get(name)
        if found is not None:
            return found.folder
        return RunFolder(self._runs / name) if self._runs is not None and self._has(name) else None

    def run(self, name: str) -> LiveRun | None:
        """Return a run, and keep it fresh for some seconds. ``None``: this machine has no such run."""
        with self._lock:
            found = self._shown.get(name)
            if found is None:
                if not self._has(name):
                    return None
                assert self._runs is not None
                found = self._shown[name] = LiveRun(self._runs / name)
                found.refresh_summary()  # its page begins with the name of the job
            if self._wanted.get(name) != float("inf"):
                self._wanted[name] = monotonic() + ATTENTION
            return found

    async def follow(self, also: Callable[[], None] = lambda: None, then: Callable[[], None] = lambda: None) -> None:
        """Refresh once a second, until cancelled. Then call ``also`` on the same thread, and ``then`` on the event loop."""
        while True:
            begun = monotonic()
            try:
                more = await asyncio.to_thread(self.refresh)
                await asyncio.to_thread(also)
            except FarflungError as error:
                _log.warning("%s", error)
                more = False
            then()
            await asyncio.sleep(0.0 if more else max(INTERVAL - (monotonic() - begun), 0.1))

    def refresh(self) -> bool:
        """Ask the broker, and read what was added to the runs that pages show. Returns whether there is more to read at once."""
        if self._poll is not None:
            self._poll.refresh()
            for run in self._poll.state.runs:
                if run["state"] in _ACTIVE:  # read ahead, so that its page opens at once
                    self.run(str(run["run"]))
        now = monotonic()
        with self._lock:
            for name in [name for name, until in self._wanted.items() if until < now - _MEMORY]:
                del self._shown[name], self._wanted[name]
            wanted = [run for name, run in self._shown.items() if self._wanted[name] > now]
        more = [run.refresh() for run in wanted]  # all of them
        return any(more)
