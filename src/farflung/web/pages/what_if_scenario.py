"""From the controls of the page *What if* to a scenario, and from a topology to the rows of its controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from farflung.api.what_if import Choices, LinkChange, MachineChange, Scenario
from farflung.api.what_if.scenario import MOST_MACHINES, link_groups
from farflung.api.what_if.sources import MODEL_PRESETS
from farflung.cluster import Topology, preset_names
from farflung.codecs import CODECS
from farflung.errors import InputError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan.codec_choice.compression import PLANNED
from farflung.planners import planner_names
from farflung.simulator import PriceTable
from farflung.sync import STRATEGIES
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds
from farflung.web.widgets.form import Choice, Field, Number, Slider, number_cell
from farflung.web.widgets.html_table import Cell

__all__ = [
    "OWN_TEXT",
    "check_size",
    "cost_note",
    "job_fields",
    "link_rows",
    "machine_rows",
    "prices_of",
    "scenario_of",
    "setting_fields",
    "topology_choices",
]

#: The value of the choice of a job or topology that means the text of a file.
OWN_TEXT = "text"
#: What stands for a setting that stays as the job has it.
_SAME = ("", "as in the job")
#: Members of numbered presets that are offered.
_NUMBERED = {"homogeneous-N": ("homogeneous-4", "homogeneous-8"), "regions-N": ("regions-16", "regions-64")}
#: Of a kWh for a household, where no price file says more; in ``PriceTable.currency``.
_ENERGY_PRICE = 0.25
#: Machines and links whose controls are shown.
_ROWS = 64

T = TypeVar("T")


def check_size(topology: Topology) -> None:
    """Check that the page can show ``topology``.

    Raises:
        InputError: it has too many machines.
    """
    if len(topology) > MOST_MACHINES:
        raise InputError(f"{topology.name} has {len(topology)} machines, this page takes {MOST_MACHINES}: use farflung plan")


def prices_of(home: Path | None) -> PriceTable:
    """Return the prices of ``prices.toml`` in the broker's folder ``home``; without the file, energy has a usual price.

    Raises:
        InputError: the file is damaged.
    """
    path = None if home is None else home / "prices.toml"
    return PriceTable(energy_price=_ENERGY_PRICE) if path is None or not path.is_file() else PriceTable.from_toml(path)


def cost_note(scenario: Scenario) -> str:
    """Return what the cost of ``scenario`` consists of."""
    currency = scenario.currency
    rent = "the rents below" if any(change.rent for change in scenario.machines) else "no rent"
    traffic = f"traffic at {scenario.traffic_price:g} {currency} per GB" if scenario.traffic_price else "free traffic"
    return (
        f"Cost: energy at {scenario.energy_price:g} {currency} per kWh, {rent}, {traffic}. "
        "Enter your prices, or write prices.toml into the broker's folder."
    )


def topology_choices() -> list[tuple[str, str]]:
    """Return the presets of topologies as options."""
    names = [name for preset in preset_names() for name in _NUMBERED.get(preset, (preset,))]
    return [(f"preset:{name}", name) for name in names]


def job_fields(runs: list[tuple[str, str]], *, own: bool, measured: bool) -> list[Field]:
    """Return the fields of the job and the topology. ``runs``: (name, text). ``own``: whether a file may be pasted."""
    models = [(f"model:{name}", preset.title) for name, preset in MODEL_PRESETS.items()]
    of_runs = [(f"run:{name}", text) for name, text in runs]
    here = [("measured", "this cluster, as measured")] if measured else []
    return [
        Choice(
            name="job",
            label="Job",
            wide=True,
            options=[(OWN_TEXT, "a job file that you paste")] if own else [],
            groups=[("Models", models), ("Runs", of_runs)],
            value="model:gpt2-xl",
        ),
        Choice(
            name="topology",
            label="Topology",
            wide=True,
            options=[*here, *([(OWN_TEXT, "a topology file that you write or paste")] if own else [])],
            groups=[("Presets", topology_choices()), ("Of runs", of_runs)],
            value="preset:home-lab",
        ),
    ]


def setting_fields(prices: PriceTable, *, samples: bool) -> list[Field]:
    """Return the fields of links, settings and prices. ``samples``: whether the size of micro-batches can change."""
    planners = [(name, name) for name in planner_names()]
    codecs = [(name, name) for name in sorted({*PLANNED, *CODECS})]
    strategies = [(name, name) for name in ("exact", *STRATEGIES)]
    size = [Number(name="samples", label="Samples per micro-batch", hint="as in the job", low=1)] if samples else []
    return [
        Slider(name="bandwidth", label="Bandwidth between regions"),
        Slider(name="latency", label="Latency between regions"),
        Choice(name="codec", label="Codec", options=[_SAME, *codecs]),
        Number(name="ratio", label="Compression ratio", hint="as in the job", low=1),
        Choice(name="planner", label="Planner", options=[_SAME, *planners]),
        Choice(name="strategy", label="Sync strategy", options=[_SAME, *strategies]),
        Number(name="replicas", label="Replicas per stage", hint="as in the job", low=1),
        Number(name="micro_batches", label="Micro-batches per step", hint="as in the job", low=1),
        *size,
        Number(name="energy_price", label="Energy, price per kWh", hint=f"{prices.energy_price:g}"),
        Number(name="traffic_price", label="Traffic, price per GB", hint="0"),
    ]


def machine_rows(topology: Topology, prices: PriceTable) -> list[list[Cell]]:
    """Return a row of controls for each machine: how many like it, how fast, with how much memory, for which rent."""
    return [
        [
            device.name,
            device.region,
            str(FlopsPerSecond(device.achieved)),
            number_cell(f"count:{i}", f"Number of machines like {device.name}", "1"),
            number_cell(f"speed:{i}", f"Speed factor of {device.name}", "1"),
            number_cell(f"memory:{i}", f"Memory in GB of {device.name}", f"{device.memory / 1e9:.4g}"),
            number_cell(f"rent:{i}", f"Rent per hour of {device.name}", f"{prices.device(device.name).hour:g}"),
        ]
        for i, device in enumerate(topology.devices[:_ROWS])
    ]


def link_rows(topology: Topology) -> list[list[Cell]]:
    """Return a row of controls for the links between each two regions (or machines)."""
    return [
        [
            group.here,
            group.there if group.there != group.here else "inside",
            number_cell(f"ms:{i}", f"Latency in ms, {group.here} to {group.there}", f"{1e3 * group.latency:.4g}"),
            number_cell(f"mbit:{i}", f"Bandwidth in Mbit/s, {group.here} to {group.there}", f"{group.bandwidth / 125e3:.4g}"),
        ]
        for i, group in enumerate(link_groups(topology)[:_ROWS])
    ]


def scenario_of(
    values: Mapping[str, str], job: JobSpec, topology: Topology, graph: Graph | None = None, prices: PriceTable | None = None
) -> Scenario:
    """Return the scenario that the controls say. ``values``: field -> text from outside; what is absent was not changed.

    ``prices``: what machines and energy cost unless ``values`` says otherwise (default: nothing).

    Raises:
        InputError: a text is no number, or a number is out of range.
    """
    prices = prices or PriceTable()
    rents = [prices.device(name).hour for name in topology.names]
    groups = link_groups(topology)
    links = [
        LinkChange(
            here=groups[i].here,
            there=groups[i].there,
            latency=_given(values, f"ms:{i}", lambda number: Seconds(number / 1e3)),
            bandwidth=_given(values, f"mbit:{i}", lambda number: BytesPerSecond(number * 125e3)),
        )
        for i in _numbers(values, ("ms", "mbit"), len(groups))
    ]
    changed = _numbers(values, ("count", "speed", "memory", "rent"), len(topology))
    machines = [
        MachineChange(
            name=topology.names[i],
            count=_given(values, f"count:{i}", int, 1),
            speed=_given(values, f"speed:{i}", float, 1.0),
            memory=_given(values, f"memory:{i}", lambda number: Bytes(number * 1e9)),
            rent=_given(values, f"rent:{i}", float, rents[i]),
        )
        for i in sorted({*changed, *(i for i, rent in enumerate(rents) if rent)})
    ]
    choices = Choices(
        planner=values.get("planner") or None,
        codec=values.get("codec") or None,
        ratio=_given(values, "ratio", float),
        strategy=values.get("strategy") or None,
        replicas=_given(values, "replicas", int),
        micro_batches=_given(values, "micro_batches", int),
        samples=_given(values, "samples", int),
    )
    return Scenario(
        job=job,
        topology=topology,
        graph=graph,
        choices=choices,
        bandwidth=2.0 ** _power(values, "bandwidth"),
        latency=2.0 ** _power(values, "latency"),
        links=tuple(links),
        machines=tuple(machines),
        energy_price=_given(values, "energy_price", float, prices.energy_price),
        traffic_price=_given(values, "traffic_price", float, 0.0),
        currency=prices.currency,
    )


def _numbers(values: Mapping[str, str], kinds: tuple[str, ...], end: int) -> list[int]:
    """Return the rows of a table of controls that were changed."""
    found = {text.partition(":")[2] for text in values if text.partition(":")[0] in kinds}
    return sorted(int(text) for text in found if text.isdecimal() and int(text) < end)


def _power(values: Mapping[str, str], name: str) -> float:
    return min(max(_number(values.get(name, "0"), name), -10.0), 10.0)


def _given(values: Mapping[str, str], name: str, convert: Callable[[float], T], default: T | None = None) -> T:
    """Return the number of a field (``default``: the field is empty)."""
    text = values.get(name, "").strip()
    if not text:
        return default  # type: ignore[return-value]  # None where None is a value of the field
    number = _number(text, name)
    if number < 0:
        raise InputError(f"{_label(name)} must not be negative, got {text}")
    return convert(number)


def _number(text: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) < 1e15:
        raise InputError(f"{_label(name)} must be a number, got {text!r:.40}")
    return number


def _label(name: str) -> str:
    return name.partition(":")[0].replace("_", " ")
