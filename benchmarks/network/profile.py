"""``benchmarks profile``: measured links against those that the emulator was told.

Eight nodes in three regions, on links of 8 to 100 Mbit/s and 2 to 90 ms, one of them behind an up-link that its links share. The
broker's rounds are run over the workers' own transport. What beta should be is payload: 0.956 of the rate, which counts packet
headers. Then the same is compared while a model is trained over such links (``network.profile_training``).
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.network.profile_training import TrainingPart, train
from benchmarks.network.transport_node import make_members
from farflung.broker.links.probes import LinkProbes
from farflung.broker.links.table import LinkTable
from farflung.cluster import Network
from farflung.emulation import Emulation
from farflung.errors import TrainingError
from farflung.messages.calls import ProbeRound, Unreachable
from farflung.messages.conversions.probes import probe_of
from farflung.messages.reports import Probed
from farflung.messages.schema import Channel, Message
from farflung.messages.wire_form import decode_as, encode
from farflung.wire.frames import Frame

__all__ = ["Profile", "ProfileSettings"]

#: Payload of a packet of 1514 bytes on the wire.
_PAYLOAD = 1448 / 1514
_REGIONS = ("home", "office", "cloud")
_LINKS = (("home", "office", 15, 8), ("home", "cloud", 20, 20), ("office", "cloud", 45, 50))
_INSIDE = (1, 100)
_PORT = 7001


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings(Settings):
    """``nodes``: how many. ``uplink``: Mbit/s that the first node of the cloud sends in all (0: no cap). ``idle``: whether the
    rounds are run; ``training``: steps of each run (0: none), on links that were measured before if ``probed``."""

    nodes: int = 8
    uplink: float = bounded(40.0)
    idle: bool = True
    training: int = bounded(24)
    probed: bool = True


class Profile:
    """The benchmark."""

    name = "profile"
    summary = "measured latency and bandwidth of emulated links against the truth (root)"

    def settings(self, quick: bool) -> ProfileSettings:
        """Three nodes with ``quick``."""
        return ProfileSettings(quick=True, nodes=3, uplink=0.0, training=0) if quick else ProfileSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Emulate, measure, compare."""
        assert isinstance(settings, ProfileSettings)
        network = Network.from_text(describe(settings))
        table, seconds, lost = measure(network, say) if settings.idle else (LinkTable(), 0.0, [])
        rows = compare(network, table)
        beta = [abs(row["beta_error"]) for row in rows]
        alpha = [row["alpha_excess"] for row in rows]
        first = next((name for name in network.topology.names if name.startswith("cloud")), "")
        figures = {
            "links": rows,
            "seconds": seconds,
            "unreachable": lost,
            "beta_error_max": max(beta, default=None),
            "beta_error_median": statistics.median(beta) if beta else None,
            "alpha_error_max_ms": max((abs(row["alpha_ms"] - row["alpha_true_ms"]) for row in rows), default=None),
            "uplink_mbps": None if (cap := table.uplink(first)) is None else cap * 8e-6,
        }
        trained = {}
        if settings.training:
            alone = Network.from_text(describe(replace(settings, uplink=0.0)))
            trained = train(alone, TrainingPart(steps=settings.training, probed=settings.probed), compare, say)
        columns = ("from", "to", "alpha ms", "true", "beta Mbit/s", "payload of the rate", "error")
        cells = [
            (r["from"], r["to"], r["alpha_ms"], r["alpha_true_ms"], r["beta_mbps"], r["beta_true_mbps"], r["beta_error"])
            for r in rows
        ]
        checks = _checks(settings, rows, beta, alpha, lost) if settings.idle else []
        checks += [_trained(settings, name, found) for name, found in trained.items()]
        return Report(figures=figures | {"training": trained}, columns=columns, rows=cells, checks=checks)


def _trained(settings: ProfileSettings, name: str, found: Mapping[str, Any]) -> Check:
    right = min(found["beta_right"], found["alpha_right"]) == found["known"] and found["told"] > 0
    told = f"of {found['told']} that training told: beta {found['told_beta_right']}, alpha {found['told_alpha_right']}"
    return Check(
        name={"during": "during training", "changed": "after a change in training"}[name],
        target="every known direction: beta within 5 %, alpha within 2 ms or 5 %",
        measured=f"beta {found['beta_right']} and alpha {found['alpha_right']} of {found['known']}; {told}",
        passed=None if settings.quick else right,
    )


def _checks(
    settings: ProfileSettings, rows: Sequence[dict[str, Any]], beta: Sequence[float], alpha: Sequence[float], lost: Sequence[str]
) -> list[Check]:
    wanted = settings.nodes * (settings.nodes - 1)
    judged = not settings.quick
    whole = len(rows) == wanted and not lost
    return [
        Check(
            name="beta of every direction",
            target="within 5 % of the payload rate",
            measured=f"worst {100 * max(beta, default=1):.1f} % of {len(rows)} directions",
            passed=whole and max(beta, default=1) <= 0.05 if judged else None,
        ),
        Check(
            name="alpha of every direction",
            target="within 2 ms or 5 %",
            measured=f"worst {max(alpha, default=9):.2f} of the tolerance",
            passed=whole and max(alpha, default=9) <= 1 if judged else None,
        ),
    ]


def describe(settings: ProfileSettings) -> str:
    """The network as a topology file."""
    lines = ['name = "profile"']
    counts: dict[str, int] = {}
    for index in range(settings.nodes):
        region = _REGIONS[index % 3]
        number = counts[region] = counts.get(region, -1) + 1
        lines += ["[[device]]", f'name = "{region}-{number}"', f'region = "{region}"', 'memory = "1 GB"', 'speed = "1 GFLOP/s"']
        if region == "cloud" and number == 0 and settings.uplink:
            lines.append(f'uplink = "{settings.uplink} Mbit/s"')
    lines += ["[inside]", f'latency = "{_INSIDE[0]} ms"', f'bandwidth = "{_INSIDE[1]} Mbit/s"']
    for a, b, latency, rate in (link for link in _LINKS if {link[0], link[1]} <= counts.keys()):
        lines += ["[[link]]", f'between = ["{a}", "{b}"]', f'latency = "{latency} ms"', f'bandwidth = "{rate} Mbit/s"']
    return "\n".join(lines) + "\n"


def measure(network: Network, say: Say) -> tuple[LinkTable, float, list[str]]:
    """Probe all links of an emulated network: what was found, in how many seconds, and who was not reached.

    Raises:
        TrainingError: a node does not start.
    """
    names = network.topology.names
    table = LinkTable()
    lost: list[str] = []
    with tempfile.TemporaryDirectory() as place, Emulation(network) as emulation:
        make_members(Path(place), names)
        nodes: dict[str, subprocess.Popen[str]] = {}
        for name in names:
            command = [sys.executable, "-m", "benchmarks.network.profile_node", place, name]
            listen = f"{emulation[name].address}:{_PORT}"
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            nodes[name] = emulation[name].start([*command, listen], **pipes)
        probes = LinkProbes(lambda name, command: _ask(nodes[name], command), table)
        members = [(name, _address(name, node)) for name, node in nodes.items()]
        listeners = [threading.Thread(target=_listen, args=(probes, name, node), daemon=True) for name, node in nodes.items()]
        for listener in listeners:
            listener.start()
        begin = time.monotonic()
        for message in probes.run(members):
            if isinstance(message, ProbeRound):
                say(f"round {message.number} of {message.of}")
            elif isinstance(message, Unreachable):
                lost.append(f"{message.source} to {message.to}: {message.cause}")
        seconds = time.monotonic() - begin
    for listener, node in zip(listeners, nodes.values(), strict=True):  # the network is gone, and its programs are
        listener.join()
        if node.stdin is not None:
            node.stdin.close()
    return table, seconds, lost


def _address(name: str, node: subprocess.Popen[str]) -> str:
    assert node.stdout is not None
    line = node.stdout.readline()
    if not line:
        raise TrainingError(f"node {name} did not start; see what it wrote")
    return str(json.loads(line)["address"])


def _ask(node: subprocess.Popen[str], command: Message) -> None:
    assert node.stdin is not None
    node.stdin.write(json.dumps(dict(encode(command).header)) + "\n")
    node.stdin.flush()


def _listen(probes: LinkProbes, name: str, node: subprocess.Popen[str]) -> None:
    assert node.stdout is not None
    with node.stdout as lines:
        for line in lines:
            answer = json.loads(line)
            found = decode_as(Frame("probed", answer), Channel.REPORTS, Probed)
            probes.answer(name, found.question, probe_of(found))
    probes.lost(name)


def compare(network: Network, table: LinkTable) -> list[dict[str, Any]]:
    """A row for each direction that was measured; ``alpha_excess``: the error as a share of what is tolerated."""
    rows = []
    for source in network.topology.names:
        for target in network.topology.names:
            found = table.get(source, target)
            if source == target or found is None:
                continue
            link = network.topology.link(source, target)
            true = float(link.bandwidth) * _PAYLOAD
            error = abs(found.alpha - float(link.latency))
            rows.append(
                {
                    "from": source,
                    "to": target,
                    "source": found.source,
                    "alpha_ms": 1e3 * found.alpha,
                    "alpha_true_ms": 1e3 * float(link.latency),
                    "beta_mbps": found.beta * 8e-6,
                    "beta_true_mbps": true * 8e-6,
                    "beta_error": found.beta / true - 1,
                    "alpha_excess": error / max(2e-3, 0.05 * float(link.latency)),
                }
            )
    return rows
