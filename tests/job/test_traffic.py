"""One rule for prices of traffic, in the limits of a job and in price tables."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from farflung.job.spec import TrafficSpec
from farflung.job.traffic import gigabyte_price
from farflung.simulator import PriceTable, TrafficPrice

ENDS = st.sampled_from(["*", "eu", "us", "asia"])
ENTRIES = st.lists(st.tuples(ENDS, ENDS, st.floats(0, 9)), max_size=6)


def test_the_entry_that_names_most_counts():
    entries = [
        TrafficSpec(gigabyte=1.0),
        TrafficSpec(source="eu", gigabyte=2.0),
        TrafficSpec(source="eu", target="us", gigabyte=3.0),
        TrafficSpec(source="us", target="us", gigabyte=4.0),
    ]
    for order in permutations(entries):
        assert gigabyte_price(order, "eu", "us") == 3.0
        assert gigabyte_price(order, "eu", "asia") == 2.0
        assert gigabyte_price(order, "asia", "eu") == 1.0
        assert gigabyte_price(order, "us", "us") == 4.0
        assert gigabyte_price(order, "eu", "eu") == 0.0, "an entry that does not name the region is about what leaves it"
    assert gigabyte_price([TrafficSpec(gigabyte=1.0), TrafficSpec(gigabyte=5.0)], "eu", "us") == 5.0


@given(entries=ENTRIES, here=ENDS, there=ENDS)
def test_limits_and_price_tables_agree(entries, here, there):
    limits = [TrafficSpec(source=a, target=b, gigabyte=price) for a, b, price in entries]
    table = PriceTable(traffic=tuple(TrafficPrice(source=a, target=b, gigabyte=price) for a, b, price in entries))
    assert table.gigabyte(here, there) == gigabyte_price(limits, here, there)
