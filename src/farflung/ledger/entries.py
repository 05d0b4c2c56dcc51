"""The sums of a run divided among its machines, with what each machine cost.

Every rule keeps the sums: over the machines of a stage, samples add up to the committed samples of the attempt; bytes sent and
bytes received add up to the bytes on all links.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest

from farflung.cluster import Topology
from farflung.errors import FarflungError
from farflung.graph.ir import Graph
from farflung.job import JobSpec
from farflung.job import from_json as job_from_json
from farflung.ledger.attempt_sums import AttemptSums, attempt_sums
from farflung.ledger.documents import parsed
from farflung.plan import Plan, estimate
from farflung.simulator import PriceTable
from farflung.simulator.typical_power import with_typical_power
from farflung.telemetry import RunFolder

__all__ = ["COLUMNS", "UNKNOWN", "Column", "Entry", "RunLedger", "ledger_of"]

#: Stands for the machines of steps by an unknown plan.
UNKNOWN = "(not recorded)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A figure of an entry: its name, its unit, what it means, and whether it is an estimate."""

    name: str
    title: str
    unit: str
    meaning: str
    estimated: bool = False


#: The figures of an entry, in the order of tables and files.
COLUMNS: tuple[Column, ...] = (
    Column(name="samples", title="samples", unit="", meaning="samples of committed steps that passed through the machine"),
    Column(
        name="wasted",
        title="repeated samples",
        unit="",
        meaning="samples of steps that were repeated after a loss, or whose loss was not a number",
    ),
    Column(
        name="flops",
        title="FLOPs (estimated)",
        unit="FLOP",
        meaning="from the cost model, for the committed samples",
        estimated=True,
    ),
    Column(
        name="sent",
        title="sent",
        unit="B",
        meaning="payload bytes of all steps, repeated ones included; replicas share the bytes of a stage by their samples",
    ),
    Column(name="received", title="received", unit="B", meaning="the same for incoming bytes"),
    Column(
        name="member_seconds", title="time in the run", unit="s", meaning="from the begin of its part to the end, pauses included"
    ),
    Column(
        name="busy_seconds",
        title="computing",
        unit="s",
        meaning="measured; replicas share the time of the busiest one by their samples",
    ),
    Column(
        name="joules",
        title="energy (estimated)",
        unit="J",
        meaning="busy and idle watts of the price file, or typical watts of the kind of device, by the times before",
        estimated=True,
    ),
    Column(name="rent", title="rent", unit="money", meaning="price of an hour, by the time in the run"),
    Column(
        name="energy_cost",
        title="energy cost (estimated)",
        unit="money",
        meaning="energy at energy_price of the price file",
        estimated=True,
    ),
    Column(name="traffic_cost", title="traffic cost", unit="money", meaning="sent bytes at the price between their regions"),
    Column(name="losses", title="left or died", unit="", meaning="attempts after which the run continued without the machine"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one machine contributed, in base units (see ``COLUMNS``). ``runs``: in so many runs."""

    machine: str
    region: str = ""
    runs: int = 1
    samples: float = 0.0
    wasted: float = 0.0
    flops: float = 0.0
    sent: float = 0.0
    received: float = 0.0
    member_seconds: float = 0.0
    busy_seconds: float = 0.0
    joules: float = 0.0
    rent: float = 0.0
    energy_cost: float = 0.0
    traffic_cost: float = 0.0
    losses: int = 0

    @property
    def cost(self) -> float:
        """Rent, energy and traffic together."""
        return self.rent + self.energy_cost + self.traffic_cost

    def plus(self, other: Entry) -> Entry:
        """Return both entries together; the region is that of ``other`` if it has one."""
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name not in _TEXTS}
        return replace(self, region=other.region or self.region, **sums)


_TEXTS = ("machine", "region")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """The samples of committed steps that a machine computed for one stage of one attempt."""

    attempt: int
    stage: int
    machine: str
    samples: float


@dataclass(frozen=True, kw_only=True)
class RunLedger:
    """The ledger of one run: an entry for each machine that had a stage, by name.

    ``samples``, ``wasted``, ``steps``, ``tokens``, ``bytes``: of the run. ``recoveries``: how often it continued after a loss.
    ``causes``: what ended the attempts before the last.
    """

    run: str
    job: str
    entries: tuple[Entry, ...]
    steps: int = 0
    samples: int = 0
    wasted: int = 0
    tokens: int = 0
    bytes: int = 0
    seconds: float = 0.0
    recoveries: int = 0
    causes: tuple[str, ...] = ()
    currency: str = "USD"
    stages: tuple[StageShare, ...] = field(default=(), repr=False)


def ledger_of(folder: RunFolder, prices: PriceTable | None = None) -> RunLedger:
    """Return the ledger of the run in ``folder``.

    Args:
        folder: a run that is over, or that goes on.
        prices: what machines, energy and traffic cost (default: nothing). Watts that it lacks are typical ones.

    Raises:
        DataError: a file is missing or damaged.
    """
    job = parsed(folder.job, None, job_from_json)
    graph = parsed(folder.graph, None, Graph.from_json) if folder.graph.is_file() else None
    attempts = attempt_sums(folder)
    prices = prices or PriceTable()
    entries: dict[str, Entry] = {}
    stages: list[StageShare] = []
    for attempt, following in zip_longest(attempts, attempts[1:]):
        for entry in _entries(attempt, following, job, graph, prices):
            entries[entry.machine] = entries[entry.machine].plus(entry) if entry.machine in entries else entry
        stages += _stage_shares(attempt)
    return RunLedger(
        run=folder.root.name,
        job=job.name,
        entries=tuple(replace(entries[name], runs=1) for name in sorted(entries)),
        steps=sum(attempt.steps for attempt in attempts),
        samples=sum(attempt.samples for attempt in attempts),
        wasted=sum(attempt.wasted for attempt in attempts),
        tokens=sum(attempt.tokens for attempt in attempts),
        bytes=sum(sum(attempt.sent.values()) for attempt in attempts),
        seconds=attempts[-1].end if attempts else 0.0,
        recoveries=max(len(attempts) - 1, 0),
        causes=tuple(attempt.cause for attempt in attempts[:-1] if attempt.cause),
        currency=prices.currency,
        stages=tuple(stages),
    )


def _entries(
    attempt: AttemptSums, following: AttemptSums | None, job: JobSpec, graph: Graph | None, prices: PriceTable
) -> Iterator[Entry]:
    plan, topology = attempt.plan, attempt.topology
    span = attempt.end - attempt.begin
    if plan is None:
        nbytes = float(sum(attempt.sent.values()))
        yield Entry(
            machine=UNKNOWN,
            samples=attempt.samples,
            wasted=attempt.wasted,
            sent=nbytes,
            received=nbytes,
            member_seconds=span,
            busy_seconds=sum(attempt.busy.values()),
        )
        return
    if topology is not None:
        helpers = {name for _, name in attempt.helped}
        used = [device for device in topology.devices if device.name in helpers.union(plan.devices)]
        prices = with_typical_power(prices, used)
    known = None if following is None or following.topology is None else set(following.topology.names)
    flops = _flops(attempt, job, graph)
    traffic = _traffic(attempt)
    for name in plan.devices:
        gone = known is not None and name not in known
        member = span - (attempt.pause if gone else 0.0)
        busy = sum(seconds * _share(plan, stage, name) / _largest(plan, stage) for stage, seconds in attempt.busy.items())
        price = prices.device(name)
        joules = busy * price.busy_watts + max(member - busy, 0.0) * price.idle_watts
        sent = {pair: nbytes for pair, nbytes in traffic.items() if pair[0] == name}
        share = _passed(plan, name)
        yield Entry(
            machine=name,
            region=_region(topology, name),
            samples=attempt.samples * share,
            wasted=attempt.wasted * share,
            flops=flops.get(name, 0.0),
            sent=sum(sent.values()),
            received=sum(nbytes for pair, nbytes in traffic.items() if pair[1] == name),
            member_seconds=member,
            busy_seconds=busy,
            joules=joules,
            rent=price.hour * member / 3600.0,
            energy_cost=joules / 3.6e6 * prices.energy_price,
            traffic_cost=sum(
                nbytes / 1e9 * prices.gigabyte(_region(topology, name), _region(topology, pair[1]))
                for pair, nbytes in sent.items()
            ),
            losses=int(gone),
        )
    yield from _helpers(attempt, flops, prices)
    if lost := traffic.get((UNKNOWN, UNKNOWN), 0.0):
        yield Entry(machine=UNKNOWN, sent=lost, received=lost)


def _helpers(attempt: AttemptSums, flops: Mapping[str, float], prices: PriceTable) -> Iterator[Entry]:
    """Yield an entry for each helper: its time in the run is that of the steps in which it helped."""
    for name in dict.fromkeys(name for _, name in attempt.helped):
        works = [work for (_, helper), work in attempt.helped.items() if helper == name]
        samples, member = max(work[0] for work in works), max(work[2] for work in works)
        price, busy = prices.device(name), min(sum(work[1] for work in works), member)
        joules = busy * price.busy_watts + (member - busy) * price.idle_watts
        yield Entry(
            machine=name,
            region=_region(attempt.topology, name),
            samples=samples,
            flops=flops.get(name, 0.0),
            member_seconds=member,
            busy_seconds=busy,
            joules=joules,
            rent=price.hour * member / 3600.0,
            energy_cost=joules / 3.6e6 * prices.energy_price,
        )


def _region(topology: Topology | None, name: str) -> str:
    return "" if topology is None or name not in topology.names else topology.device(name).region


def _stage_shares(attempt: AttemptSums) -> Iterator[StageShare]:
    plan = attempt.plan
    for stage in plan.stages if plan is not None else ():
        for name in stage.devices:
            samples = attempt.samples * _share(plan, stage.index, name)
            yield StageShare(attempt=attempt.number, stage=stage.index, machine=name, samples=samples)


def _weights(plan: Plan, stage: int) -> Mapping[str, float]:
    """Return device -> samples per step of ``stage``; replicas of a sync strategy that rest in some steps count less."""
    return {
        replica.device: sum(plan.micro_batch_sizes[replica.first : replica.end]) * plan.steps_taken(stage, replica.device)
        for replica in plan.replicas_of(stage)
    }


def _share(plan: Plan | None, stage: int, name: str) -> float:
    """Return the share of the samples of ``stage`` that the machine ``name`` computes."""
    if plan is None or stage >= len(plan.stages):
        return 0.0
    weights = _weights(plan, stage)
    return weights.get(name, 0.0) / sum(weights.values())


def _largest(plan: Plan, stage: int) -> float:
    """Return the largest share of a machine in ``stage``: that machine has the measured time."""
    if stage >= len(plan.stages):
        return 1.0
    weights = _weights(plan, stage)
    return max(weights.values()) / sum(weights.values())


def _passed(plan: Plan, name: str) -> float:
    """Return the share of the samples that pass through any stage of the machine ``name``."""
    single = [_share(plan, stage.index, name) for stage in plan.stages_of(name)]
    if plan.sync is not None or len(single) == 1:
        return max(single)  # replica k of all stages computes the same samples
    done: set[int] = set()
    for stage in plan.stages_of(name):
        for replica in plan.replicas_of(stage.index):
            if replica.device == name:
                done.update(replica.micro_batches)
    return sum(plan.micro_batch_sizes[index] for index in done) / sum(plan.micro_batch_sizes)


def _flops(attempt: AttemptSums, job: JobSpec, graph: Graph | None) -> Mapping[str, float]:
    """Return machine -> FLOPs of the committed samples by the cost model (empty: the folder has no model)."""
    plan, topology = attempt.plan, attempt.topology
    if graph is None or plan is None or topology is None:
        return {}
    try:
        found = estimate(graph, plan, topology, job)
    except FarflungError:  # another version made the plan or the model: this column stays empty
        return {}
    flops: dict[str, float] = {}
    helped: dict[int, dict[str, int]] = {}
    for (index, name), (samples, _, _) in attempt.helped.items():
        helped.setdefault(index, {})[name] = samples
    for stage in found.replicas:
        each = (stage.forward_flops + stage.backward_flops) / max(plan.micro_batch_sizes)
        share = _share(plan, stage.index, stage.device)
        own = attempt.samples
        for name, samples in helped.get(stage.index, {}).items():  # the work of helpers is not that of the stage's servers
            own -= samples
            flops[name] = flops.get(name, 0.0) + each * samples * share
        flops[stage.device] = flops.get(stage.device, 0.0) + each * max(own, 0) * share
    return flops


def _traffic(attempt: AttemptSums) -> Mapping[tuple[str, str], float]:
    """Return (sender, receiver) -> bytes. Between replicated stages, bytes are divided by the samples of both ends."""
    plan, found = attempt.plan, dict[tuple[str, str], float]()
    assert plan is not None
    for (source, target), nbytes in attempt.sent.items():
        for pair, share in _pairs(plan, source, target):
            found[pair] = found.get(pair, 0.0) + nbytes * share
    return found


def _pairs(plan: Plan, source: int, target: int) -> Sequence[tuple[tuple[str, str], float]]:
    """Return the pairs of machines that carry the bytes from stage ``source`` to ``target``, with shares that add up to 1."""
    stages = len(plan.stages)
    if source >= stages or target >= stages:
        return [((UNKNOWN, UNKNOWN), 1.0)]
    if source == target:  # replicas exchange gradients: each sends and receives as much as any other
        names = plan.stages[source].devices
        pairs = [(a, b) for a in names for b in names if a != b] or [(names[0], names[0])]
        return [(pair, 1.0 / len(pairs)) for pair in pairs]
    shares: dict[tuple[str, str], float] = {}
    total = sum(plan.micro_batch_sizes)
    for index, size in enumerate(plan.micro_batch_sizes):
        pair = plan.device_of(source, index), plan.device_of(target, index)
        shares[pair] = shares.get(pair, 0.0) + size / total
    return list(shares.items())
