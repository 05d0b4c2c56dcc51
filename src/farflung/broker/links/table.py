"""The figures of links between workers, from bandwidth probes (``probes``) and from training (``traffic_figures``)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from farflung.broker.links.slowdowns import LinkSlowdowns
from farflung.checkpoint.store import write_file
from farflung.cluster import Device, Topology, pair_of
from farflung.errors import FarflungError
from farflung.thread_group import ThreadGroup
from farflung.units import BytesPerSecond

__all__ = ["LinkFigures", "LinkTable"]

FloatArray = npt.NDArray[np.float64]

#: Unmeasured directions: 1 ms and 1 Gbit/s.
_ALPHA, _BETA = 1e-3, 125e6


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """One direction: seconds one way, payload bytes per second, and their source (``probe`` or ``training``).

    ``relay``: the relay through which it was measured (empty: none).
    """

    alpha: float
    beta: float
    source: str = "probe"
    relay: str = ""


class LinkTable:
    """Measured links by (from, to), and caps of devices; stored in a file. Any thread may call.

    The file is a cache. So it is not synced, and nothing fails if it can't be written; ``say`` receives one warning. Figures come
    by the thousands: a thread "link-table" writes them a moment later, all at once.
    """

    #: How much later: seconds.
    LATER = 1.0

    def __init__(self, path: Path | None = None, say: Callable[[str], None] = lambda text: None) -> None:
        self._path, self._say = path, say
        self._lock = threading.Lock()
        self._threads = ThreadGroup()
        #: Whether a thread waits to write.
        self._waiting = False
        self._warned = self._closed = False
        self._links: dict[tuple[str, str], LinkFigures] = {}
        self._uplinks: dict[str, float] = {}
        #: Caps that owners set for their machines; not stored in the file.
        self._owner_caps: dict[str, float] = {}
        #: Links that are slow now.
        self.slowdowns = LinkSlowdowns()
        if path is not None and path.exists():
            self._read(path)

    def put(self, source: str, target: str, figures: LinkFigures) -> None:
        """Store the figures of one direction."""
        with self._lock:
            self._links[source, target] = figures
            self._write_later()

    def all(self) -> dict[tuple[str, str], LinkFigures]:
        """Return the measured figures by (from, to)."""
        with self._lock:
            return dict(self._links)

    def put_uplink(self, name: str, rate: float | None) -> None:
        """Store the bytes per second that ``name`` can send to all peers together (None: no cap was found)."""
        with self._lock:
            self._uplinks.pop(name, None)
            if rate is not None:
                self._uplinks[name] = rate
            self._write()

    def put_owner_cap(self, name: str, rate: float | None) -> None:
        """Store the bytes per second that its owner allows ``name`` to send (None: no cap)."""
        with self._lock:
            self._owner_caps.pop(name, None)
            if rate is not None:
                self._owner_caps[name] = rate

    def owner_cap(self, name: str) -> float | None:
        """Return the cap that the owner of ``name`` set."""
        with self._lock:
            return self._owner_caps.get(name)

    def get(self, source: str, target: str) -> LinkFigures | None:
        """Return the figures of one direction (None: it was not measured)."""
        with self._lock:
            return self._links.get((source, target))

    def topology(
        self, devices: Sequence[Device], name: str = "measured", apart: Collection[tuple[str, str]] = ()
    ) -> Topology | None:
        """Return the devices with the figures of their links and up-links (None: nothing was measured).

        An unmeasured direction between named regions has the median figures of the measured directions between these regions;
        others count as 1 Gbit/s with 1 ms. No direction is faster than its sender's up-link. What was measured through a relay
        counts for pairs ``apart`` only.
        """
        count = len(devices)
        alpha, beta = np.full((count, count), _ALPHA), np.full((count, count), _BETA)
        place = {device.name: index for index, device in enumerate(devices)}
        with self._lock:
            caps = [self._cap(device.name) for device in devices]
            found = any(device.name in self._owner_caps for device in devices)
            measured = [
                (place[a], place[b], figures)
                for (a, b), figures in self._links.items()
                if a in place and b in place and (not figures.relay or pair_of(a, b) in apart)
            ]
        if not (found or measured):
            return None
        _fill_regions([device.region for device in devices], [one for one in measured if not one[2].relay], alpha, beta)
        for i, j, figures in measured:
            alpha[i, j], beta[i, j] = figures.alpha, figures.beta
        for i, cap in enumerate(caps):
            beta[i] = beta[i] if cap is None else np.minimum(beta[i], cap)
        ends = [d if cap is None else replace(d, uplink=BytesPerSecond(cap)) for d, cap in zip(devices, caps, strict=True)]
        return Topology(devices=tuple(ends), alpha=alpha, beta=beta, name=name)

    def relays(self, pairs: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """Return those of ``pairs`` whose both directions were measured through one relay, with that relay."""
        with self._lock:
            found = {
                pair: {one.relay if one is not None else "" for one in (self._links.get(pair), self._links.get(pair[::-1]))}
                for pair in pairs
            }
        return {pair: relays.pop() for pair, relays in found.items() if len(relays) == 1 and "" not in relays}

    def uplink(self, name: str) -> float | None:
        """Return the bytes per second that ``name`` can send to all peers together (None: no cap is known)."""
        with self._lock:
            return self._cap(name)

    def _cap(self, name: str) -> float | None:
        known = [caps[name] for caps in (self._uplinks, self._owner_caps) if name in caps]
        return min(known) if known else None

    def _read(self, path: Path) -> None:
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            for entry in body["links"]:
                self._links[entry["from"], entry["to"]] = LinkFigures(
                    alpha=float(entry["alpha"]),
                    beta=float(entry["beta"]),
                    source=str(entry["source"]),
                    relay=str(entry.get("relay", "")),
                )
            self._uplinks = {str(name): float(rate) for name, rate in body["uplinks"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._links, self._uplinks = {}, {}  # a cache: it is measured again

    def close(self) -> None:
        """Write what waits, and join the thread; nothing is written later."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, False
            if waiting:
                self._write()
        self._threads.cancel()
        self._threads.join()  # without the lock, which the thread may want

    def _write_later(self) -> None:
        if self._path is not None and not (self._waiting or self._closed):
            self._waiting = True
            self._threads.later(self.LATER, "link-table", self._time_over)

    def _time_over(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting = False
                self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        links = [{"from": a, "to": b, **asdict(figures)} for (a, b), figures in self._links.items()]
        try:
            write_file(self._path, [json.dumps({"links": links, "uplinks": self._uplinks}).encode()], durable=False)
        except FarflungError as error:
            if not self._warned:
                self._say(f"warning: {error}; what is measured of links is kept in memory only")
            self._warned = True
        else:
            self._warned = False


def _fill_regions(
    regions: Sequence[str], measured: Sequence[tuple[int, int, LinkFigures]], alpha: FloatArray, beta: FloatArray
) -> None:
    """Give the directions between named regions the medians of those that were ``measured`` between them."""
    rows: dict[str, list[int]] = {}
    for index, region in enumerate(regions):
        if region:
            rows.setdefault(region, []).append(index)
    known: dict[tuple[str, str], list[LinkFigures]] = {}
    for i, j, figures in measured:
        known.setdefault((regions[i], regions[j]), []).append(figures)
    for (a, b), found in known.items():
        if a and b:
            block = np.ix_(rows[a], rows[b])
            alpha[block], beta[block] = median([one.alpha for one in found]), median([one.beta for one in found])
