"""``emulator``: how true the emulated network is: round trips when idle and under load, rates, and how soon it is there."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.harness.priority import favoured
from benchmarks.network.probing import busy_processors, round_trips, stream
from farflung.cluster import Topology
from farflung.emulation import Emulation
from farflung.emulation.kernel import require_root

__all__ = ["Emulator", "EmulatorSettings"]

_RTT_ERROR, _RATE_ERROR, _UP = 1e-3, 0.05, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorSettings(Settings):
    """``rtts_ms``: round trips to set. ``rates``: Mbit/s at so many ms of round trip, as ``rate/rtt``. ``probes``: echo requests
    for each figure. ``seconds``: of each stream, after ``warm_up``, under TCP congestion control ``congestion``. ``nodes``: of
    the large network, made ``repeats`` times."""

    rtts_ms: tuple[float, ...] = (10.0, 50.0, 250.0)
    rates: tuple[str, ...] = ("8/40", "100/50", "1000/10")
    probes: int = 40
    congestion: str = "cubic"
    warm_up: float = bounded(4.0)
    seconds: float = 8.0
    nodes: int = 48
    repeats: int = 5


class Emulator:
    """Error of round trips and rates, and seconds until 48 nodes are up."""

    name = "emulator"
    summary = "emulated network: errors of round trips (idle, loaded) and rates, seconds until 48 nodes are up (root)"

    def settings(self, quick: bool) -> EmulatorSettings:
        """Quick: one round trip, one rate, four nodes."""
        if quick:
            return EmulatorSettings(
                quick=True, rtts_ms=(10.0,), rates=("40/10",), probes=3, warm_up=0.3, seconds=0.5, nodes=4, repeats=1
            )
        return EmulatorSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure.

        Raises:
            EmulationError: no root.
        """
        assert isinstance(settings, EmulatorSettings)
        require_root()
        up = [_up(settings.nodes, say) for _ in range(settings.repeats)]
        with Emulation(Topology.preset("homogeneous-2")) as emulation:
            idle = [_trip(emulation, rtt, settings.probes, say) for rtt in settings.rtts_ms]
            cores = os.cpu_count() or 1
            with busy_processors(cores):
                say(f"{cores} processes compute")
                loaded = [_trip(emulation, rtt, settings.probes, say) for rtt in settings.rtts_ms]
            rates = [_rate(emulation, text, settings, say) for text in settings.rates]
            priority = emulation.priority
        figures = {
            "idle": idle,
            "loaded": loaded,
            "rates": rates,
            "up_seconds": [pair[0] for pair in up],
            "down_seconds": [pair[1] for pair in up],
            "router_priority": priority,
        }
        return Report(
            figures=figures,
            columns=("what", "set", "measured", "from", "to", "error"),
            rows=_rows(idle, loaded, rates),
            checks=_checks(settings, idle, rates, median(pair[0] for pair in up)),
        )


def _up(nodes: int, say: Say) -> tuple[float, float]:
    """Seconds to make and to remove a network."""
    begin = time.monotonic()
    with Emulation(Topology.preset(f"homogeneous-{nodes}")) as emulation:
        middle = time.monotonic()
        first, *_, last = emulation.nodes.values()
        round_trips(first, last, 1)
        end = time.monotonic()
    found = middle - begin, time.monotonic() - end
    say(f"{nodes} nodes up in {found[0]:.2f} s, down in {found[1]:.2f} s")
    return found


def _trip(emulation: Emulation, rtt_ms: float, probes: int, say: Say) -> dict[str, Any]:
    """Round trips with latencies set to half of ``rtt_ms`` each way."""
    first, second = emulation.nodes.values()
    emulation.change({"between": [first.name, second.name], "latency": rtt_ms / 2e3, "bandwidth": "1 Gbit/s"})
    times = round_trips(first, second, probes)
    found = {"set_ms": rtt_ms, "median_ms": median(times) * 1e3, "error_ms": median(times) * 1e3 - rtt_ms}
    say(f"round trip {rtt_ms:g} ms: {found['median_ms']:.3f} ms")
    return {**found, "min_ms": min(times) * 1e3, "max_ms": max(times) * 1e3}


def _rate(emulation: Emulation, text: str, settings: EmulatorSettings, say: Say) -> dict[str, Any]:
    """What one TCP stream carries on a link of ``rate/rtt``."""
    mbit, rtt_ms = (float(part) for part in text.split("/"))
    first, second = emulation.nodes.values()
    emulation.change({"between": [first.name, second.name], "latency": rtt_ms / 2e3, "bandwidth": f"{mbit:f} Mbit/s"})
    router = psutil.Process(emulation.router)
    before, begin = sum(router.cpu_times()[:2]), time.monotonic()
    options = {"warm_up": settings.warm_up, "seconds": settings.seconds}
    with favoured():
        rate = stream(first, second, congestion=settings.congestion, **options)
    rate *= 8e-6
    cores = (sum(router.cpu_times()[:2]) - before) / (time.monotonic() - begin)
    say(f"{mbit:g} Mbit/s at {rtt_ms:g} ms: {rate:.2f} Mbit/s")
    return {"set_mbit": mbit, "rtt_ms": rtt_ms, "measured_mbit": rate, "error": rate / mbit - 1, "router_cores": cores}


def _rows(idle: list[dict[str, Any]], loaded: list[dict[str, Any]], rates: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [
        (f"{name} round trip, ms", item["set_ms"], item["median_ms"], item["min_ms"], item["max_ms"], item["error_ms"])
        for name, items in (("idle", idle), ("loaded", loaded))
        for item in items
    ]
    return rows + [("rate, Mbit/s", item["set_mbit"], item["measured_mbit"], "", "", item["error"]) for item in rates]


def _checks(settings: EmulatorSettings, idle: list[dict[str, Any]], rates: list[dict[str, Any]], up: float) -> tuple[Check, ...]:
    trip = max(abs(item["error_ms"]) for item in idle)
    rate = max(abs(item["error"]) for item in rates)
    judged = not settings.quick
    return (
        Check(
            name="error of idle round trips, at most",
            target=f"{_RTT_ERROR * 1e3:g} ms",
            measured=f"{trip:.3f} ms",
            passed=trip <= _RTT_ERROR * 1e3 if judged else None,
        ),
        Check(
            name="error of rates, IP bytes counted, at most",
            target=f"{_RATE_ERROR:.0%}",
            measured=f"{rate:.1%}",
            passed=rate <= _RATE_ERROR if judged else None,
        ),
        Check(
            name=f"{settings.nodes} nodes up",
            target=f"{_UP:g} s",
            measured=f"{up:.2f} s",
            passed=up <= _UP if judged else None,
        ),
    )
