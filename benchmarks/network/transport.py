"""``benchmarks transport``: which part of a link's rate a large transfer gets, on emulated links, under TLS.

Each case is a pair of namespaces joined by a link of some rate, round trip and loss, both ways alike. One process in each, at
nice -19; the sender's frames go one after the other. The first ones are not counted: the link finds its number of connections
then. Rates count IP packets with Ethernet headers, so 0.956 of them is the most that payload can have.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.network.transport_node import make_members
from farflung.cluster import Network
from farflung.emulation import Emulation
from farflung.errors import TrainingError

__all__ = ["Transport", "TransportSettings"]

_MOST = 0.956


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCase:
    """A link and the goodput it shall reach, as a share of ``mbps`` (Mbit/s); ``rtt`` in ms."""

    name: str
    mbps: float
    rtt: float
    nbytes: int
    target: float
    loss: float = 0.0
    warm: int = 1


CASES = {
    case.name: case
    for case in (
        LinkCase(name="8-40", mbps=8, rtt=40, nbytes=4_000_000, target=0.92),
        LinkCase(name="100-50", mbps=100, rtt=50, nbytes=64_000_000, target=0.92),
        LinkCase(name="1000-20", mbps=1000, rtt=20, nbytes=64_000_000, target=0.91, warm=3),
        LinkCase(name="500-100", mbps=500, rtt=100, nbytes=64_000_000, target=0.85, warm=4),
        LinkCase(name="100-50-loss", mbps=100, rtt=50, nbytes=64_000_000, target=0.80, loss=0.005),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings(Settings):
    """``cases``: names of links; ``repeats``: counted transfers; ``transports``: members to compare, ours first."""

    cases: tuple[str, ...] = tuple(CASES)
    repeats: int = 5
    transports: tuple[str, ...] = ("tcp",)


class Transport:
    """The benchmark."""

    name = "transport"
    summary = "goodput of large transfers on emulated links, as a share of the links' rate (root)"

    def settings(self, quick: bool) -> TransportSettings:
        """One short case with ``quick``."""
        return TransportSettings(quick=True, cases=("100-50",), repeats=1) if quick else TransportSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure case after case."""
        assert isinstance(settings, TransportSettings)
        results: list[dict[str, Any]] = []
        for name in settings.cases:
            case = CASES[name]
            for transport in settings.transports:
                found = measure(case, transport, settings)
                say(f"{name} over {transport}: {found['fraction']:.3f} of {case.mbps:g} Mbit/s")
                results.append(found)
        columns = (
            "link",
            "transport",
            "Mbit/s",
            "ms",
            "loss",
            "MB",
            "fraction",
            "first",
            "connections",
            "congestion",
            "cpu s/GB",
        )
        rows = [_row(result) for result in results]
        ours = [result for result in results if result["transport"] == settings.transports[0]]
        checks = [_check(CASES[result["case"]], result, judged=not settings.quick) for result in ours]
        return Report(figures={"links": results, "most": _MOST}, columns=columns, rows=rows, checks=checks)


def measure(case: LinkCase, transport: str, settings: TransportSettings) -> dict[str, Any]:
    """Transfers over one emulated link; seconds from ``post`` to the receiver's handler.

    Raises:
        TrainingError: an end failed; the text is what it wrote.
    """
    size = case.nbytes // 16 if settings.quick else case.nbytes
    sizes = [size] * (case.warm + settings.repeats)
    with tempfile.TemporaryDirectory() as place, Emulation(Network.from_text(_network(case))) as emulation:
        folder = Path(place)
        make_members(folder, ("a", "b"))
        command = [sys.executable, "-m", "benchmarks.network.transport_node"]
        at = emulation["b"].address
        pipes: Mapping[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        receiver = emulation["b"].start([*command, "receive", str(folder), transport, f"{at}:7001"], **pipes)
        assert receiver.stdout is not None
        address = json.loads(receiver.stdout.readline())["address"]
        listed = ",".join(str(one) for one in sizes)
        sender = emulation["a"].start(
            [*command, "send", str(folder), transport, f"{emulation['a'].address}:7001", address, listed], **pipes
        )
        sent, complaint = sender.communicate()
        received, _ = receiver.communicate("")
    return _figures(case, transport, size, _lines(sent, complaint), _lines(received, complaint))


def _network(case: LinkCase) -> str:
    link = f'latency = "{case.rtt / 2} ms"\nbandwidth = "{case.mbps} Mbit/s"\nloss = {case.loss}\nqueue = "100 ms"'
    devices = "".join(
        f'[[device]]\nname = "{name}"\nregion = "{name}"\nmemory = "1 GB"\nspeed = "1 GFLOP/s"\n' for name in ("a", "b")
    )
    return f'name = "{case.name}"\n{devices}[[link]]\nbetween = ["a", "b"]\n{link}\n'


def _lines(text: str, complaint: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError:
        raise TrainingError(f"an end of the link failed: {complaint[-1500:]}") from None


def _figures(
    case: LinkCase, transport: str, size: int, sent: Sequence[dict[str, Any]], received: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    seconds = [line["seconds"] for line in received if "seconds" in line]
    ends = [line for line in sent if "connections" in line]
    if not ends or len(seconds) <= case.warm:
        raise TrainingError(f"the transfers over {case.name} did not end; see the lines that the nodes wrote")
    fractions = [size * 8 / one / (case.mbps * 1e6) for one in seconds]
    cpu = sum(line["cpu"] for line in (*sent, *received) if "cpu" in line)
    return {
        "case": case.name,
        "transport": transport,
        "mbps": case.mbps,
        "rtt_ms": case.rtt,
        "loss": case.loss,
        "nbytes": size,
        "fraction": statistics.median(fractions[case.warm :]),
        "fractions": [round(one, 4) for one in fractions],
        "connections": ends[-1]["connections"],
        "round_trip_ms": 1e3 * ends[-1]["round_trip"],
        "congestion": ends[-1]["congestion"],
        "repeated_bytes": ends[-1].get("repeated", 0),
        "cpu_seconds_per_gb": cpu / (size * len(seconds) / 1e9),
    }


def _row(result: Mapping[str, Any]) -> Sequence[object]:
    first = result["fractions"][0]
    keys = ("case", "transport", "mbps", "rtt_ms", "loss")
    tail = (result["connections"], result["congestion"], result["cpu_seconds_per_gb"])
    return (*(result[key] for key in keys), result["nbytes"] / 1e6, result["fraction"], first, *tail)


def _check(case: LinkCase, result: Mapping[str, Any], *, judged: bool) -> Check:
    return Check(
        name=f"goodput on {case.name}",
        target=f"{case.target:.2f} of the rate",
        measured=f"{result['fraction']:.3f}",
        passed=result["fraction"] >= case.target if judged else None,
        note="" if judged else "a short transfer is mostly waiting",
    )
