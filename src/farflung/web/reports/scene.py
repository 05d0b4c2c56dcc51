"""What a map of a plan shows, before it is drawn: devices with their stages, and the ways between them with their load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from farflung.cluster import Topology
from farflung.plan import CodecChoice, Estimate, LinkPlan, Plan
from farflung.simulator import Simulation
from farflung.units import Bytes, BytesPerSecond, Seconds
from farflung.web.reports.ink import percent
from farflung.web.reports.run import Run

__all__ = ["Scene", "Spot", "Way", "bundled", "scene_of_plan", "scene_of_run"]

#: More devices than these are drawn as their regions.
_MOST_SPOTS = 128
#: Ways inside of one region that are drawn where ways are bundled.
_MOST_INSIDE = 24
#: Of frames without a value in them (heads, verdicts): no way on a map.
_LITTLE = 4096.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A device that holds stages (or, where there are too many, the devices of a region). Shares are of 1; None: not known."""

    name: str
    region: str
    stages: tuple[int, ...]
    busy: float | None = None
    memory: float | None = None
    facts: str = ""
    reliable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What goes from one spot to another in a step. ``share``: of the step in which the link is busy. ``exchange``: gradients of
    replicas or of tied parameters, and not values between stages. ``count``: links that were taken together.
    """

    source: str
    target: str
    nbytes: float
    share: float | None = None
    exchange: bool = False
    codec: str = ""
    facts: str = ""
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Scene:
    """``spots`` in the order of the pipeline. ``spare``: region -> devices that the plan leaves out.

    ``inside``: region -> bytes per step of ways in it that are not drawn.
    """

    spots: tuple[Spot, ...]
    ways: tuple[Way, ...]
    stages: int
    spare: Mapping[str, int] = field(default_factory=dict)
    inside: Mapping[str, float] = field(default_factory=dict)

    @property
    def by_region(self) -> Scene:
        """The same with a spot for each region."""
        groups: dict[str, list[Spot]] = {}
        for spot in self.spots:
            groups.setdefault(spot.region, []).append(spot)
        home = {spot.name: spot.region for spot in self.spots}
        ways = (replace(way, source=home[way.source], target=home[way.target]) for way in self.ways)
        return replace(self, spots=tuple(_merged(name, members) for name, members in groups.items()), ways=_together(ways))


def _merged(region: str, members: list[Spot]) -> Spot:
    busy = [spot.busy for spot in members if spot.busy is not None]
    memory = [spot.memory for spot in members if spot.memory is not None]
    return Spot(
        name=region,
        region=region,
        stages=tuple(sorted({stage for spot in members for stage in spot.stages})),
        busy=max(busy, default=None),
        memory=max(memory, default=None),
        facts=f"{len(members)} devices; the busiest and the fullest of them count",
        reliable=all(spot.reliable for spot in members),
    )


def _together(ways: Iterable[Way]) -> tuple[Way, ...]:
    """Ways between the same two spots, values and exchanges apart; those inside of one spot go."""
    found: dict[tuple[str, str, bool], Way] = {}
    for way in ways:
        key = way.source, way.target, way.exchange
        if way.source == way.target:
            continue
        had = found.get(key)
        if had is None:
            found[key] = way
            continue
        count, nbytes = had.count + way.count, had.nbytes + way.nbytes
        shares = [share for share in (had.share, way.share) if share is not None]
        facts = f"{count} links from {way.source} to {way.target}: {Bytes(nbytes)} per step together; the busiest of them counts"
        codec = had.codec if had.codec == way.codec else "several"
        found[key] = replace(had, count=count, nbytes=nbytes, share=max(shares, default=None), facts=facts, codec=codec)
    return tuple(found.values())


def bundled(scene: Scene, most: int) -> Scene:
    """``scene`` with what can be told apart: regions in place of too many devices, ways by regions for more than ``most``.

    Ways inside of a region stay as they are where they are few, and are left out where they are many (``inside`` counts them).
    """
    if len(scene.spots) > _MOST_SPOTS:
        return scene.by_region
    if len(scene.ways) <= most or len({spot.region for spot in scene.spots}) < 2:
        return scene
    home = {spot.name: spot.region for spot in scene.spots}
    inside: dict[str, list[Way]] = {}
    for way in scene.ways:
        if home[way.source] == home[way.target]:
            inside.setdefault(home[way.source], []).append(way)
    kept = [way for ways in inside.values() if len(ways) <= _MOST_INSIDE for way in ways]
    hidden = {region: sum(way.nbytes for way in ways) for region, ways in inside.items() if len(ways) > _MOST_INSIDE}
    return replace(scene, ways=(*scene.by_region.ways, *kept), inside=hidden)


def scene_of_plan(plan: Plan, topology: Topology, estimate: Estimate, simulation: Simulation) -> Scene:
    """The plan under its simulation: how busy and how full devices are, what links carry in a step."""
    steps = simulation.steps
    busy = {use.device: 1.0 - use.bubble for use in simulation.devices}
    full = {use.device: use.memory_bytes / use.memory_limit for use in simulation.devices}
    labels = _codecs(plan)
    exchanges = {(estimate.replicas[e.source].device, estimate.replicas[e.target].device) for e in estimate.exchanges}
    ways = []
    for use in simulation.links:
        pair = (use.source, use.target)
        inner = labels.get(pair)
        nbytes = use.sent_bytes / steps
        if inner is None and (pair not in exchanges or nbytes < _LITTLE):
            continue
        rate = topology.link(*pair)
        codec = inner or ""
        line = f"{BytesPerSecond(rate.bandwidth)}, {Seconds(rate.latency)}"
        what = f"codec {codec}" if codec else f"{estimate.exchanged} of replicas, or gradients of tied parameters"
        facts = f"{use.source} to {use.target} ({line}): {Bytes(nbytes)} per step, busy in {percent(use.share)} of it; {what}"
        ways.append(
            Way(
                source=use.source,
                target=use.target,
                nbytes=nbytes,
                share=use.share,
                exchange=inner is None,
                codec=codec,
                facts=facts,
            )
        )
    spots = tuple(_spot(plan, topology, name, busy.get(name), full.get(name)) for name in plan.devices)
    return Scene(spots=spots, ways=tuple(ways), stages=len(plan.stages), spare=_spare(plan, topology))


def scene_of_run(run: Run) -> Scene:
    """The plan of a run with what its links carried in a mean step, as far as that was written down."""
    labels = _codecs(run.plan)
    loads: dict[tuple[str, str], float] = {}
    for link in run.links:
        pair = run.device(link[0]), run.device(link[1])
        if all(pair) and pair[0] != pair[1]:
            loads[pair] = loads.get(pair, 0.0) + run.link_mean(link)
    ways, typical = [], run.plan_medians[-1] if run.present_steps else 0.0
    for (source, target), nbytes in loads.items():
        codec = labels.get((source, target), "")
        seconds = _seconds(run, source, target, nbytes)
        share = min(1.0, seconds / typical) if seconds is not None and typical else None
        busy = f", busy in {percent(share)} of it by the topology" if share is not None else ""
        facts = f"{source} to {target}: {Bytes(nbytes)} per mean step{busy}; codec {codec or 'identity'}"
        ways.append(Way(source=source, target=target, nbytes=nbytes, share=share, codec=codec, facts=facts))
    spots = tuple(_spot(run.plan, run.topology, name, _busy(run, name), None) for name in run.plan.devices)
    spare = _spare(run.plan, run.topology) if run.topology is not None else {}
    return Scene(spots=spots, ways=tuple(ways), stages=len(run.plan.stages), spare=spare)


def _seconds(run: Run, source: str, target: str, nbytes: float) -> float | None:
    if run.topology is None or not {source, target} <= set(run.topology.names):
        return None
    return run.topology.seconds(source, target, nbytes)


def _busy(run: Run, device: str) -> float | None:
    """Share of the steps since the last recovery in which the stages of ``device`` computed (with replicas: of the primary)."""
    own = [stage.index for stage in run.plan.stages if stage.device == device]
    seconds = sum(record.seconds for record in run.present_steps)
    if not own or seconds <= 0:
        return None
    return min(1.0, sum(record.busy_seconds.get(stage, 0.0) for record in run.present_steps for stage in own) / seconds)


def _spare(plan: Plan, topology: Topology) -> Mapping[str, int]:
    used = set(plan.devices)
    return dict(Counter(device.region for device in topology.devices if device.name not in used))


def _spot(plan: Plan, topology: Topology | None, name: str, busy: float | None, memory: float | None) -> Spot:
    known = topology.device(name) if topology is not None and name in topology.names else None
    held = plan.stages_of(name)
    facts = [f"{name}: stage{'s' if len(held) > 1 else ''} {', '.join(str(stage.index) for stage in held)}"]
    for stage in held:
        if stage.replicas:
            own = next(replica for replica in stage.replicas if replica.device == name)
            facts.append(f"micro-batches {own.first} to {own.end - 1} of stage {stage.index} ({len(stage.replicas)} replicas)")
        if stage.recompute:
            facts.append(f"stage {stage.index} recomputes")
        if stage.shard == "parameters":
            facts.append(f"ranks divide the parameters of stage {stage.index}")
        elif stage.shard == "tensor":
            facts.append(f"ranks compute each micro-batch of stage {stage.index} together")
    if busy is not None:
        facts.append(f"computes in {percent(busy)} of the step")
    if memory is not None:
        facts.append(f"memory {percent(memory)} full")
    if known is not None and not known.reliable:
        facts.append("unreliable")
    return Spot(
        name=name,
        region=known.region if known is not None else "",
        stages=tuple(stage.index for stage in held),
        busy=busy,
        memory=memory,
        facts="; ".join(facts),
        reliable=known is None or known.reliable,
    )


def _codecs(plan: Plan) -> dict[tuple[str, str], str]:
    """(sending device, receiving device) -> codec of the values or gradients that stages send each other there."""
    found: dict[tuple[str, str], set[str]] = {}
    for link in plan.links:
        for here, there in _pairs(plan, link):
            found.setdefault((here, there), set()).add(_short(link.activations))
            found.setdefault((there, here), set()).add(_short(link.gradients))
    return {pair: ", ".join(sorted(names)) for pair, names in found.items() if pair[0] != pair[1]}


def _short(choice: CodecChoice) -> str:
    ratio = dict(choice.params).get("ratio")
    return choice.name if ratio is None else f"{choice.name} {float(ratio):.3g}"


def _pairs(plan: Plan, link: LinkPlan) -> set[tuple[str, str]]:
    """The devices between which values of ``link`` go: replicas that share a micro-batch."""
    return {
        (here.device, there.device)
        for here in plan.replicas_of(link.source)
        for there in plan.replicas_of(link.target)
        if here.first < there.end and there.first < here.end
    }
