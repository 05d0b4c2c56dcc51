"""``replicas``: members that each hold the whole model, beside torch DDP, torchft and hivemind on the same emulated links.

Product: a broker and workers as processes over TLS, one in each node (``harness.emulated``). Opponents: ``replica_peer``, one
process in each node. All compute for real, in as many threads, on the processors of one machine. Runs take turns. An opponent is
compared with the strategy that exchanges the same: gradients in every step, averages of parameters, or DiLoCo's outer steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import farflung
from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.emulated import EmulatedCluster
from benchmarks.harness.gpt_stages import GptSize, small_gpt
from benchmarks.network.pipeline import network, step_seconds
from benchmarks.network.replica_peer import PEERS, ReplicaSettings
from farflung.emulation.kernel import require_root
from farflung.errors import InputError, TrainingError
from farflung.ids import new_id
from farflung.job.spec import SyncSpec
from farflung.messages.submission import Bundle

__all__ = ["OURS", "Replicas", "ReplicasSettings", "period_seconds"]

_PORT = 29500
#: Each peer's own kind of exchange here.
OURS: Mapping[str, str] = {
    "torch ddp": "wfbp",
    "torchft local_sgd": "local_sgd",
    "torchft diloco": "diloco",
    "hivemind": "local_sgd",
}
_IN_TORCH = "torch ddp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasSettings(Settings):
    """``links``: ``Mbit/s:round trip in ms`` of every link, one case each. ``periods``: measured ones, of ``sync_every`` steps;
    one before does not count. ``python``: an interpreter with torchft and hivemind; without it only torch takes part."""

    links: tuple[str, ...] = ("20:20",)
    members: int = 4
    blocks: int = 2
    width: int = 128
    sequence: int = 64
    rows: int = 2
    sync_every: int = 5
    periods: int = 2
    rounds: int = 3
    python: str = ""


class Replicas:
    """Step times and their ratios."""

    name = "replicas"
    summary = "step time of replicas against torch DDP, torchft and hivemind on the same emulated links (root)"

    def settings(self, quick: bool) -> ReplicasSettings:
        """Quick: two members, one short turn."""
        if quick:
            few = ReplicasSettings(quick=True, links=("50:10",), sync_every=2, periods=1, rounds=1)
            return replace(few, members=2, blocks=1, width=32, sequence=32)
        return ReplicasSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure.

        Raises:
            EmulationError: this user may not make network namespaces.
            FarflungError: a process ends early, or a run fails.
        """
        assert isinstance(settings, ReplicasSettings)
        require_root()
        if settings.members < 2:
            raise InputError(f"members must be at least 2, got {settings.members}")
        return _report(settings, [_case(settings, links, say) for links in settings.links])


def _case(settings: ReplicasSettings, links: str, say: Say) -> dict[str, Any]:
    topology = network(settings.members, links)
    size = GptSize(blocks=settings.blocks, width=settings.width, sequence=settings.sequence, rows=settings.rows)
    base = small_gpt(size, topology, threads=settings.threads, seed=settings.seed)
    peers = [name for name in PEERS if settings.python or name == _IN_TORCH]
    ours = sorted({OURS[name] for name in peers})
    rounds: dict[str, list[float]] = {name: [] for name in (*peers, *ours)}
    sent: dict[str, float] = {}
    with EmulatedCluster(topology) as cluster:
        for turn in range(settings.rounds):
            for name, found in rounds.items():
                if name in PEERS:
                    times = _peer(cluster, settings, size, name)
                else:
                    run = cluster.run(_variant(settings, base, name))
                    times = [step.seconds for step in run.steps]
                    sent[name] = fmean(step.total_bytes for step in run.steps)
                found.append(median(period_seconds(times, settings.sync_every)))
                say(f"{links}, round {turn}: {name}: {found[-1]:.3f} s per step")
    parameters = sum(state.spec.numel for state in base.graph.parameters)
    return {"links": links, "seconds": rounds, "parameters": parameters, "bytes_per_step": sent}


def period_seconds(steps: Sequence[float], every: int) -> list[float]:
    """Mean seconds of a step in each period of ``every`` steps, without the first period, which warms up."""
    return [fmean(steps[at : at + every]) for at in range(every, len(steps) - every + 1, every)]


def _variant(settings: ReplicasSettings, base: Bundle, strategy: str) -> Bundle:
    every: dict[str, Any] = {} if strategy == OURS[_IN_TORCH] else {"sync_every": settings.sync_every}
    changes = {
        "steps": settings.sync_every * (1 + settings.periods),
        "micro_batch_sizes": (settings.rows,) * settings.members,
        "plan": base.job.plan.model_copy(update={"planner": "equal_number", "replicas": settings.members}),
        "sync": SyncSpec(strategy=strategy, settings=every),
    }
    return replace(base, run=new_id("run"), job=base.job.model_copy(update=changes))


def _peer(cluster: EmulatedCluster, settings: ReplicasSettings, size: GptSize, name: str) -> list[float]:
    nodes = list(cluster.emulation.nodes.values())
    place = {"MASTER_ADDR": nodes[0].address, "MASTER_PORT": str(_PORT), "WORLD_SIZE": str(len(nodes))}
    place |= {"GLOO_SOCKET_IFNAME": "wan0"}
    place |= {"PYTHONPATH": os.pathsep.join([str(Path(farflung.__file__).parents[1]), *filter(None, [os.getenv("PYTHONPATH")])])}
    with tempfile.TemporaryDirectory(prefix="farflung-bench-") as meeting:
        peer = ReplicaSettings(
            peer=name,
            model={key: value for key, value in size.args.items() if key != "tied"},
            rows=settings.rows,
            steps=settings.sync_every * (1 + settings.periods),
            sync_every=settings.sync_every,
            meeting=meeting,
            threads=settings.threads,
            seed=settings.seed,
        )
        command = [settings.python or sys.executable, "-m", "benchmarks.network.replica_peer", json.dumps(asdict(peer))]
        texts = [Path(meeting) / f"output-{rank}" for rank in range(len(nodes))]
        with ExitStack() as files:  # not pipes: a full one would stall a member
            ranks = [
                node.start(
                    command,
                    env={**place, "RANK": str(rank), "NODE_ADDRESS": node.address},
                    stdout=files.enter_context(texts[rank].open("wb")),
                    stderr=subprocess.STDOUT,
                )
                for rank, node in enumerate(nodes)
            ]
            codes = [process.wait() for process in ranks]
        told = [text.read_text(encoding="utf-8", errors="replace") for text in texts]
    for code, output in zip(codes, told, strict=True):
        if code:
            raise TrainingError(f"a member of {name} failed: {output[-1500:]}")
    lines = [[line for line in output.splitlines() if line.startswith('{"step"')] for output in told]
    return step_seconds([[json.loads(line)["at"] for line in found] for found in lines])


def _report(settings: ReplicasSettings, cases: Sequence[dict[str, Any]]) -> Report:
    rows: list[tuple[object, ...]] = []
    checks: list[Check] = []
    for case in cases:
        seconds: dict[str, list[float]] = case["seconds"]
        case["ratios"] = {
            name: median(theirs / ours for theirs, ours in zip(times, seconds[OURS[name]], strict=True))
            for name, times in seconds.items()
            if name in PEERS
        }
        for name, times in seconds.items():
            rows.append((case["links"], name, OURS.get(name, ""), median(times), case["ratios"].get(name, "")))
        for name, ratio in case["ratios"].items():
            checks.append(
                Check(
                    name=f"{OURS[name]} against {name} at {case['links']}",
                    target="faster",
                    measured=f"{ratio:.2f} x as fast",
                    passed=ratio > 1 if not settings.quick else None,
                )
            )
    columns = ("Mbit/s:ms", "who", "compared with", "s/step", "ours is x as fast")
    return Report(figures={"cases": list(cases)}, columns=columns, rows=rows, checks=checks)
