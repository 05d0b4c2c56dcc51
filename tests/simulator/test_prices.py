"""The price file of the documentation is read, and means what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from farflung.simulator import PriceTable

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"


def test_the_documented_price_file(tmp_path: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Price file")[2].partition("\n## ")[0]
    match = re.search(r"```toml\n(.*?)```", section, re.DOTALL)
    assert match is not None
    (tmp_path / "prices.toml").write_text(match[1])
    prices = PriceTable.from_toml(tmp_path / "prices.toml")
    assert (prices.currency, prices.energy_price) == ("USD", 0.25)
    assert (prices.device("gpu-3").busy_watts, prices.device("gpu-3").hour) == (350, 1.2)
    assert (prices.device("laptop").busy_watts, prices.device("laptop").idle_watts) == (60, 15)
    assert prices.gigabyte("here", "there") == 0.09
    assert prices.gigabyte("there", "here") == 0.09
    assert prices.gigabyte("here", "here") == 0
    bill = prices.bill(3600.0, {"gpu-3": 1800.0}, {("here", "there"): 2e9})
    assert bill.rent == pytest.approx(1.2)
    assert bill.energy == pytest.approx((350 + 60) / 2 / 1000 * 0.25)
    assert bill.traffic == pytest.approx(0.18)
    for key in re.findall(r"^\| (`.*?`)", section, re.MULTILINE):
        assert all(word in match[1] for word in key.replace("`", "").split(", ")), key
