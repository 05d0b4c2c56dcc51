"""``sync-speeds``: what fewer local steps for slower replicas bring in samples per second, on unequal emulated devices.

A real broker and real workers over TLS in an emulated network, computing held at the devices' speeds (``paced``). Each
replica has one micro-batch, so samples can't be shared by speed. Three runs: every replica takes all steps; slower ones take
fewer, by the speeds that the plan knows; and the same with a plan that thinks all devices equal, so that local steps come from
what the run measures. The last one is counted from where it follows that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.emulated import EmulatedCluster
from benchmarks.harness.paced import pace_of
from benchmarks.harness.priority import favoured
from benchmarks.network.pipeline import network
from benchmarks.network.sync_network import SyncNetworkSettings, bundle_for
from farflung.chaos.local_cluster import Finished
from farflung.cluster import Topology
from farflung.emulation.kernel import require_root
from farflung.engines.base import EngineSettings
from farflung.graph.cut import cut
from farflung.ids import new_id
from farflung.job.spec import SyncSpec
from farflung.units import FlopsPerSecond, Seconds

__all__ = ["SyncSpeeds", "SyncSpeedsSettings"]

_ALL, _TOLD, _MEASURED = "all steps", "by speed, as planned", "by speed, as measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSpeedsSettings(Settings):
    """``speeds``: of the devices, in parts of the fastest, which computes a forward and a backward in ``step`` seconds. ``link``:
    ``Mbit/s:round trip in ms``. ``periods``: measured ones; before them one passes, and two where times are measured."""

    strategy: str = "local_sgd"
    speeds: tuple[float, ...] = (1.0, 1.0, 0.5, 0.35)
    step: float = 0.6
    sync_every: int = 8
    periods: int = 2
    link: str = "8:10"
    model: str = "gpt2"
    sequence: int = 32
    rows: int = 2


class SyncSpeeds:
    """Samples per second by what local steps go by."""

    name = "sync-speeds"
    summary = "samples per second with fewer local steps for slower replicas, on unequal emulated devices (root)"

    def settings(self, quick: bool) -> SyncSpeedsSettings:
        """Quick: two devices, short steps."""
        if quick:
            return SyncSpeedsSettings(quick=True, speeds=(1.0, 0.5), step=0.2, sync_every=2, periods=1, link="20:10")
        return SyncSpeedsSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure.

        Raises:
            EmulationError: this user may not make network namespaces.
            FarflungError: a process ends early, or a run fails.
        """
        assert isinstance(settings, SyncSpeedsSettings)
        require_root()
        with favoured():
            found = _measure(settings, say)
        return _report(settings, found)


def _measure(settings: SyncSpeedsSettings, say: Say) -> dict[str, dict[str, Any]]:
    blank = network(len(settings.speeds), settings.link)
    sizes = SyncNetworkSettings(
        members=len(settings.speeds),
        sequence=settings.sequence,
        rows=settings.rows,
        threads=settings.threads,
        seed=settings.seed,
    )
    base = bundle_for(sizes, settings.model, blank)
    whole = [(0, len(base.graph.ops), blank.names[0])]
    (piece,) = cut(base.graph, [(0, len(base.graph.ops))])
    unit = pace_of(piece, EngineSettings(optimizer=base.job.optimizer), 1.0)
    fastest = (unit.forward + unit.backward) / settings.step
    found = {}
    speeds = {name: fastest * part for name, part in zip(blank.names, settings.speeds, strict=True)}
    with EmulatedCluster(blank, speeds=speeds) as cluster:
        for case in (_ALL, _TOLD, _MEASURED):
            before = 2 if case == _MEASURED else 1
            steps = (before + settings.periods) * settings.sync_every
            sync = SyncSpec(strategy=settings.strategy, settings={"sync_every": settings.sync_every, "by_speed": case != _ALL})
            job = base.job.model_copy(update={"steps": steps, "sync": sync})
            topology = _told(blank, speeds if case != _MEASURED else dict.fromkeys(speeds, fastest))
            run = cluster.run(replace(base, run=new_id("run"), job=job, topology=topology), whole)
            found[case] = _item(run, before * settings.sync_every)
            say(f"{case}: {found[case]['samples_per_second']:.2f} samples per second, planned {found[case]['planned']}")
    return found


def _told(blank: Topology, speeds: Mapping[str, float]) -> Topology:
    devices = [
        replace(device, speed=FlopsPerSecond(speeds[device.name]), speed_factor=1.0, overhead=Seconds(0.0))
        for device in blank.devices
    ]
    return blank.with_devices(devices)


def _item(run: Finished, before: int) -> dict[str, Any]:
    counted = run.steps[before:]
    seconds = [step.seconds for step in counted]
    return {
        "samples_per_second": sum(step.samples for step in counted) / sum(seconds),
        "samples": [step.samples for step in run.steps],
        "seconds": [step.seconds for step in run.steps],
        "planned": list(run.plan.sync.local_steps) if run.plan.sync is not None else [],
        "final_loss": float(np.mean([step.loss for step in counted])),
    }


def _report(settings: SyncSpeedsSettings, found: Mapping[str, Mapping[str, Any]]) -> Report:
    plain = found[_ALL]["samples_per_second"]
    checks = [
        Check(
            name=f"{case} against {_ALL}, samples per second",
            target="above 1 x",
            measured=f"{found[case]['samples_per_second'] / plain:.2f} x",
            passed=None if settings.quick else found[case]["samples_per_second"] > plain,
        )
        for case in (_TOLD, _MEASURED)
    ]
    rows = [(case, item["samples_per_second"], item["samples_per_second"] / plain) for case, item in found.items()]
    return Report(figures={"runs": dict(found)}, columns=("case", "samples per second", "ratio"), rows=rows, checks=checks)
