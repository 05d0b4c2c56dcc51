"""``pipeline``: the product beside ``torch.distributed.pipelining`` over Gloo, same model and split, same emulated links.

Product: a broker and workers as processes over TLS, one in each node (``harness.emulated``). Opponent: ``torch_peer``, one
process in each node, no encryption. Both compute for real, in as many threads, on the processors of one machine. Runs take turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings, bounded
from benchmarks.harness.emulated import EmulatedCluster
from benchmarks.harness.gpt_stages import GptSize, place_blocks, small_gpt, variant
from benchmarks.network.torch_peer import PeerSettings
from farflung.chaos.local_cluster import Finished
from farflung.cluster import Topology
from farflung.emulation.kernel import require_root
from farflung.errors import InputError, TrainingError
from farflung.job.spec import CodecSpec
from farflung.messages.submission import Bundle

__all__ = ["Pipeline", "PipelineSettings", "network", "step_seconds"]

_PORT = 29500
#: How many times as fast as torch: a job's default schedule with dense values, and with AdaTopK.
_DENSE, _COMPRESSED = 2.0, 15.0
#: What each contestant is: (schedule, whether AdaTopK); None: torch.
_KINDS: Mapping[str, tuple[str, bool] | None] = {
    "torch": None,
    "dense": ("1f1b", False),
    "dense auto": ("auto", False),
    "adatopk": ("auto", True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings(Settings):
    """``links``: ``Mbit/s:round trip in ms`` of every link, one case each. ``split``: blocks of each stage. ``rounds``: turns of
    ``steps`` steps for each contestant, of which ``warm_up`` do not count. ``kinds``: who
    takes part (torch, dense, dense auto, adatopk)."""

    links: tuple[str, ...] = ("8:40",)
    split: tuple[int, ...] = (1, 1, 1, 1)
    width: int = 128
    sequence: int = 128
    rows: int = 4
    micro_batches: int = 8
    steps: int = 4
    warm_up: int = bounded(1)
    rounds: int = 2
    ratio: float = 100.0
    kinds: tuple[str, ...] = tuple(_KINDS)


class Pipeline:
    """Step times and their ratios."""

    name = "pipeline"
    summary = "step time against torch.distributed.pipelining over Gloo on the same emulated links (root)"

    def settings(self, quick: bool) -> PipelineSettings:
        """Quick: two stages, one short turn."""
        if quick:
            small = {"width": 32, "sequence": 32, "rows": 2, "micro_batches": 2, "steps": 3, "warm_up": 1, "rounds": 1}
            return PipelineSettings(quick=True, links=("50:10",), split=(1, 1), kinds=("torch", "dense", "adatopk"), **small)
        return PipelineSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure.

        Raises:
            EmulationError: this user may not make network namespaces.
            FarflungError: a process ends early, or a run fails.
        """
        assert isinstance(settings, PipelineSettings)
        require_root()
        _check_settings(settings)
        cases = [self._case(settings, links, say) for links in settings.links]
        return _report(settings, cases)

    def _case(self, settings: PipelineSettings, links: str, say: Say) -> dict[str, Any]:
        topology = network(len(settings.split), links)
        size = _size(settings)
        base = small_gpt(size, topology, threads=settings.threads, seed=settings.seed)
        rounds: dict[str, list[list[float]]] = {kind: [] for kind in settings.kinds}
        last: dict[str, Finished] = {}
        with EmulatedCluster(topology) as cluster:
            for turn in range(settings.rounds):
                for kind, found in rounds.items():
                    if _KINDS[kind] is None:
                        times = _torch(cluster, settings)
                    else:
                        last[kind] = _ours(cluster, base, kind, settings)
                        times = [step.seconds for step in last[kind].steps]
                    found.append(times[settings.warm_up :])
                    say(f"{links}, round {turn}: {kind}: {median(found[-1]):.3f} s per step")
        return {
            "links": links,
            "seconds": rounds,
            "parameters": sum(state.spec.numel for state in base.graph.parameters),
            "value_bytes": size.value_bytes,
            "schedules": {kind: run.plan.schedule for kind, run in last.items()},
            "predicted_seconds": {kind: run.steps[-1].predicted_seconds for kind, run in last.items()},
            "bytes_per_step": {kind: run.steps[-1].total_bytes for kind, run in last.items()},
            "codecs": {kind: [str(link.activations) for link in run.plan.links] for kind, run in last.items()},
        }


def network(count: int, links: str) -> Topology:
    """``count`` equal devices, each in a region of its own; all links alike, ``Mbit/s:round trip in ms``.

    Raises:
        InputError: the text is not like that.
    """
    rate, colon, trip = links.partition(":")
    try:
        mbit, ms = float(rate), float(trip)
    except ValueError:
        colon = ""
        mbit = ms = 0.0
    if not colon or mbit <= 0 or ms < 0:
        raise InputError(f"links {links!r} must be rate:round trip in Mbit/s and ms, e.g. 20:40")
    alpha = np.full((count, count), ms / 2e3)
    beta = np.full((count, count), mbit * 1e6 / 8)
    np.fill_diagonal(alpha, 0.0)
    np.fill_diagonal(beta, np.inf)
    return Topology.from_matrices(alpha, beta)


def _check_settings(settings: PipelineSettings) -> None:
    unknown = [kind for kind in settings.kinds if kind not in _KINDS]
    if unknown:
        raise InputError(f"unknown contestant {unknown[0]!r}: known are {', '.join(_KINDS)}")
    if settings.steps <= settings.warm_up:
        raise InputError(f"steps must be more than warm_up, got {settings.steps} and {settings.warm_up}")


def _size(settings: PipelineSettings) -> GptSize:
    return GptSize(blocks=sum(settings.split), width=settings.width, sequence=settings.sequence, rows=settings.rows)


def _ours(cluster: EmulatedCluster, base: Bundle, kind: str, settings: PipelineSettings) -> Finished:
    given = _KINDS[kind]
    assert given is not None
    codec = CodecSpec(name="adatopk", ratio=settings.ratio) if given[1] else CodecSpec()
    more = {"schedule": given[0], "codec": codec}
    bundle = variant(base, cluster.topology, settings.micro_batches, settings.steps, more)
    return cluster.run(bundle, place_blocks(base.graph, settings.split, cluster.topology.names))


def _torch(cluster: EmulatedCluster, settings: PipelineSettings) -> list[float]:
    nodes = list(cluster.emulation.nodes.values())
    peer = PeerSettings(
        blocks=settings.split,
        model={key: value for key, value in _size(settings).args.items() if key != "tied"},
        rows=settings.rows,
        micro_batches=settings.micro_batches,
        steps=settings.steps,
        threads=settings.threads,
        seed=settings.seed,
    )
    command = [sys.executable, "-m", "benchmarks.network.torch_peer", json.dumps(asdict(peer))]
    place = {"MASTER_ADDR": nodes[0].address, "MASTER_PORT": str(_PORT), "WORLD_SIZE": str(len(nodes))}
    place |= {"GLOO_SOCKET_IFNAME": "wan0"}
    pipes: Mapping[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [node.start(command, env={**place, "RANK": str(rank)}, **pipes) for rank, node in enumerate(nodes)]
    told = [process.communicate() for process in ranks]
    for process, (_, complaint) in zip(ranks, told, strict=True):
        if process.returncode:
            raise TrainingError(f"a rank of torch.distributed.pipelining failed: {complaint[-1500:]}")
    return step_seconds([[json.loads(line)["at"] for line in output.splitlines()] for output, _ in told])


def step_seconds(ends: Sequence[Sequence[float]]) -> list[float]:
    """From each rank's ends of steps (one clock): seconds of each step, which ends when the last rank has ended it.

    The first is measured from itself, so it is 0: it belongs to the warm-up.
    """
    done = [max(times) for times in zip(*ends, strict=True)]
    return [after - before for before, after in zip([done[0], *done], done, strict=False)]


def _report(settings: PipelineSettings, cases: Sequence[dict[str, Any]]) -> Report:
    rows: list[tuple[object, ...]] = []
    checks: list[Check] = []
    for case in cases:
        typical = {kind: median(time for times in rounds for time in times) for kind, rounds in case["seconds"].items()}
        case["seconds_per_step"] = typical
        case["ratios"] = _ratios(case["seconds"])
        for kind, seconds in typical.items():
            predicted = case["predicted_seconds"].get(kind)
            sent = case["bytes_per_step"].get(kind)
            rows.append(
                (case["links"], kind, seconds, case["ratios"].get(kind, 1.0), predicted or "", "" if sent is None else sent / 1e6)
            )
        for kind, target in (("dense auto", _DENSE), ("adatopk", _COMPRESSED)):
            if kind in case["ratios"]:
                checks.append(_check(case, kind, target, judged=not settings.quick))
    columns = ("Mbit/s:ms", "who", "s/step", "x as fast as torch", "predicted s", "MB/step")
    return Report(figures={"cases": list(cases)}, columns=columns, rows=rows, checks=checks)


def _ratios(seconds: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, float]:
    """Medians of torch / ours, turn by turn."""
    if "torch" not in seconds:
        return {}
    found = {}
    for kind, rounds in seconds.items():
        if kind != "torch":
            pairs = zip(seconds["torch"], rounds, strict=True)
            found[kind] = median(median(theirs) / median(ours) for theirs, ours in pairs)
    return found


def _check(case: Mapping[str, Any], kind: str, target: float, *, judged: bool) -> Check:
    ratio = case["ratios"][kind]
    return Check(
        name=f"{kind} against torch pipelining at {case['links']}",
        target=f"{target:g} x as fast, or better",
        measured=f"{ratio:.2f} x",
        passed=ratio >= target if judged else None,
    )
