"""``benchmarks changing``: what a busy link carries in the seconds after its rate has changed; emulated, under TLS.

Two namespaces, a link of ``rtt`` ms both ways alike, whose rate steps through ``rates`` (Mbit/s), ``seconds`` each. The sender
keeps the link busy; what has arrived is looked at four times a second. For each step after the first: the seconds until one
second's goodput is 0.8 of the new rate, and the mean over the step's last half. Goodput can be 0.956 of a rate at most (headers).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.network.transport_node import make_members
from farflung.cluster import Network
from farflung.emulation import Emulation
from farflung.errors import TrainingError

__all__ = ["Changing", "ChangingSettings", "judge_step"]

_SHARE, _WINDOW, _SOON = 0.8, 1.0, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingSettings(Settings):
    """``rates`` in Mbit/s, ``seconds`` each; ``rtt`` in ms; ``repeats``: times."""

    rates: tuple[float, ...] = (100.0, 10.0, 100.0)
    seconds: float = 12.0
    rtt: float = 50.0
    repeats: int = 3


class Changing:
    """The benchmark."""

    name = "changing"
    summary = "goodput of a busy link in the seconds after its rate has changed (root)"

    def settings(self, quick: bool) -> ChangingSettings:
        """Quick: one short change."""
        return ChangingSettings(quick=True, rates=(50.0, 10.0), seconds=4.0, repeats=1) if quick else ChangingSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure, step by step."""
        assert isinstance(settings, ChangingSettings)
        found: list[dict[str, Any]] = []
        for turn in range(settings.repeats):
            found += [{"turn": turn, **step} for step in measure(settings)]
            say(
                f"turn {turn + 1}: "
                + "; ".join(f"{s['from']:g} to {s['to']:g}: {s['late']:.1f} s" for s in found if s["turn"] == turn)
            )
        checks, rows = [], []
        for number, (before, after) in enumerate(zip(settings.rates, settings.rates[1:], strict=False)):
            turns = [step for step in found if step["step"] == number]
            late, share = (statistics.median(step[key] for step in turns) for key in ("late", "share"))
            rows.append((f"{before:g} to {after:g}", late, share, min(step["share"] for step in turns)))
            checks.append(
                Check(
                    name=f"{before:g} to {after:g} Mbit/s",
                    target=f"{_SHARE} of the new rate within {_SOON:g} s",
                    measured=f"after {late:.1f} s",
                    passed=None if settings.quick else late <= _SOON,
                    note="a short step" if settings.quick else "",
                )
            )
        columns = ("Mbit/s", "seconds to 0.8", "share of the rate later", "worst")
        return Report(figures={"steps": found}, columns=columns, rows=rows, checks=checks)


def measure(settings: ChangingSettings) -> list[dict[str, Any]]:
    """One turn through all rates.

    Raises:
        TrainingError: an end failed; the text is what it wrote.
    """
    pipes: Mapping[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with tempfile.TemporaryDirectory() as place, Emulation(Network.from_text(_network(settings))) as emulation:
        make_members(Path(place), ("a", "b"))
        command = [sys.executable, "-m", "benchmarks.network.transport_node"]
        receiver = emulation["b"].start([*command, "receive", place, "tcp", f"{emulation['b'].address}:7001"], **pipes)
        assert receiver.stdout is not None
        assert receiver.stderr is not None
        address = json.loads(receiver.stdout.readline())["address"]
        threads = [threading.Thread(target=pipe.read, daemon=True) for pipe in (receiver.stdout, receiver.stderr)]
        for thread in threads:
            thread.start()  # its pipes must not fill; it ends when its input does
        length = str(settings.seconds * len(settings.rates) + 3.0)
        sender = emulation["a"].start(
            [*command, "stream", place, "tcp", f"{emulation['a'].address}:7001", address, length], **pipes
        )
        assert sender.stdout is not None
        samples = [json.loads(sender.stdout.readline())]
        changes: list[float] = []
        thread = threading.Thread(target=_change, args=(emulation, settings, changes), daemon=True)
        thread.start()
        told, complaint = sender.communicate()
        assert receiver.stdin is not None
        receiver.stdin.close()
        for each in (thread, *threads):
            each.join()
        receiver.stdout.close()
        receiver.stderr.close()
    try:
        samples += [json.loads(line) for line in told.splitlines()]
    except ValueError:
        raise TrainingError(f"an end of the link failed: {complaint[-1500:]}") from None
    ends = [*changes[1:], changes[-1] + settings.seconds]
    steps = zip(settings.rates, settings.rates[1:], changes, ends, strict=False)
    return [
        {"step": number, "from": before, "to": after, **judge_step(samples, after * 1e6 / 8, begin, end)}
        for number, (before, after, begin, end) in enumerate(steps)
    ]


def judge_step(samples: Sequence[Mapping[str, Any]], rate: float, begin: float, end: float) -> dict[str, Any]:
    """From ``begin`` to ``end`` the link carries ``rate`` bytes per second: ``late``, seconds until a second's goodput was 0.8 of
    it (those of the whole step: never), and ``share``, the goodput of the last half."""
    inside = [sample for sample in samples if begin <= sample["at"] <= end]
    late, goodputs = end - begin, []
    for first in inside:
        last = next((sample for sample in inside if sample["at"] >= first["at"] + _WINDOW), None)
        if last is None:
            break
        goodput = (last["arrived"] - first["arrived"]) / (last["at"] - first["at"])
        goodputs.append(goodput / rate)
        if goodput >= _SHARE * rate:
            late = min(late, last["at"] - begin)
    half = [sample for sample in inside if sample["at"] >= (begin + end) / 2]
    mean = (half[-1]["arrived"] - half[0]["arrived"]) / (half[-1]["at"] - half[0]["at"]) if len(half) > 1 else 0.0
    return {
        "late": late,
        "share": mean / rate,
        "goodputs": [round(value, 3) for value in goodputs],
        "connections": inside[-1]["connections"] if inside else 0,
        "broken": inside[-1]["resumed"] if inside else 0,
        "repeated": inside[-1]["repeated"] if inside else 0,
    }


def _change(emulation: Emulation, settings: ChangingSettings, changes: list[float]) -> None:
    for rate in settings.rates[1:]:
        time.sleep(settings.seconds)
        emulation.change({"between": ["a", "b"], "bandwidth": f"{rate} Mbit/s"})
        changes.append(time.monotonic())


def _network(settings: ChangingSettings) -> str:
    link = f'latency = "{settings.rtt / 2} ms"\nbandwidth = "{settings.rates[0]} Mbit/s"'
    devices = "".join(f'[[device]]\nname = "{n}"\nregion = "{n}"\nmemory = "1 GB"\nspeed = "1 GFLOP/s"\n' for n in ("a", "b"))
    return f'name = "changing"\n{devices}[[link]]\nbetween = ["a", "b"]\n{link}\n'
