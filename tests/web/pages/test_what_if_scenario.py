"""From texts of a browser to a scenario."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from farflung.api.what_if.sources import preset_job
from farflung.cluster import Topology
from farflung.codecs import CODECS
from farflung.errors import InputError
from farflung.units import Bytes, BytesPerSecond, Seconds

pytest.importorskip("nicegui", reason="the extra farflung[web] is not installed")

from farflung.web.pages.what_if_scenario import (
    check_size,
    cost_note,
    link_rows,
    machine_rows,
    prices_of,
    scenario_of,
    setting_fields,
    topology_choices,
)
from farflung.web.widgets.form import Choice

BASE = Topology.preset("home-lab")
JOB = preset_job("gpt-small")


def test_nothing_changed_is_the_job_on_the_topology() -> None:
    found = scenario_of({"job": "model:gpt2", "topology": "preset:home-lab"}, JOB, BASE)
    assert found.chosen_job() == JOB
    assert found.changed() == BASE


def test_texts_become_changes() -> None:
    values = {
        "bandwidth": "-2",
        "latency": "1",
        "codec": "int8",
        "planner": "",
        "replicas": "2",
        "micro_batches": "8",
        "energy_price": "0.3",
        "count:1": "3",
        "rent:1": "1.5",
        "speed:2": "2",
        "memory:2": "6.5",
        "ms:0": "40",
        "mbit:0": "100",
        "count:99": "5",
    }
    found = scenario_of(values, JOB, BASE)
    assert (found.bandwidth, found.latency, found.energy_price) == (0.25, 2.0, 0.3)
    assert (found.choices.codec, found.choices.planner, found.choices.replicas, found.choices.micro_batches) == (
        "int8",
        None,
        2,
        8,
    )
    assert [(one.name, one.count, one.speed, one.memory, one.rent) for one in found.machines] == [
        ("cloud-0", 3, 1.0, None, 1.5),
        ("cloud-1", 1, 2.0, Bytes(6.5e9), 0.0),
    ]
    (link,) = found.links
    assert (link.here, link.there, link.latency, link.bandwidth) == ("home", "cloud", Seconds(0.04), BytesPerSecond(12.5e6))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replicas": "x"}, "replicas must be a number, got 'x'"),
        ({"bandwidth": "nan"}, "bandwidth must be a number, got 'nan'"),
        ({"energy_price": "-1"}, "energy price must not be negative, got -1"),
        ({"count:0": "1e300"}, "count must be a number, got '1e300'"),
    ],
)
def test_what_is_no_number_is_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        scenario_of(values, JOB, BASE)


def test_a_large_topology_is_refused() -> None:
    check_size(Topology.preset("homogeneous-256"))
    with pytest.raises(InputError, match="homogeneous-257 has 257 machines, this page takes 256: use farflung plan"):
        check_size(Topology.preset("homogeneous-257"))


def test_an_extreme_slider_stays_in_its_range() -> None:
    assert scenario_of({"bandwidth": "400"}, JOB, BASE).bandwidth == 2.0**10


def test_controls_show_the_topology_and_escape_its_names() -> None:
    strange = BASE.rename({"pc": '"><script>'})
    html = "".join(str(cell) for cell in machine_rows(strange, prices_of(None))[0][3:])
    assert "<script>" not in html
    assert 'data-field="count:0"' in html
    assert 'data-field="memory:0"' in html
    assert [row[0] for row in link_rows(BASE)] == ["home", "cloud"]
    assert 'value="20"' in str(link_rows(BASE)[0][3])
    names = {field.name for field in setting_fields(prices_of(None), samples=False)}
    assert "samples" not in names
    codecs = next(field for field in setting_fields(prices_of(None), samples=False) if field.name == "codec")
    assert isinstance(codecs, Choice)
    assert {"auto", "adatopk", *CODECS} == {value for value, _ in codecs.options if value}
    assert all(Topology.preset(value.partition(":")[2]) for value, _ in topology_choices())


def test_a_price_file_fills_what_nobody_entered(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text('currency = "EUR"\nenergy_price = 0.4\n[[device]]\nmatch = "cloud-*"\nhour = 1.2\n')
    prices = prices_of(tmp_path)
    found = scenario_of({"rent:1": "2"}, JOB, BASE, prices=prices)
    rents = {one.name: one.rent for one in found.machines}
    assert (found.energy_price, found.currency, rents["cloud-0"], rents["cloud-1"]) == (0.4, "EUR", 2.0, 1.2)
    assert cost_note(found).startswith("Cost: energy at 0.4 EUR per kWh, the rents below, free traffic. Enter your prices")
    assert 'value="1.2"' in str(machine_rows(BASE, prices)[1][-1])


def test_without_a_price_file_energy_has_a_usual_price(tmp_path: Path) -> None:
    for home in (None, tmp_path):
        found = scenario_of({}, JOB, BASE, prices=prices_of(home))
        assert (found.energy_price, found.machines) == (0.25, ())
        assert cost_note(found).startswith("Cost: energy at 0.25 USD per kWh, no rent, free traffic.")
    priced = scenario_of({"energy_price": "0", "traffic_price": "0.09"}, JOB, BASE, prices=prices_of(None))
    assert "energy at 0 USD per kWh, no rent, traffic at 0.09 USD per GB" in cost_note(priced)
