"""Calls are counted by group until they end."""

from __future__ import annotations

import pytest

from farflung.errors import InputError
from farflung.security import Caller
from farflung.transports.rpc.calls import Call, CallPlaces
from farflung.transports.rpc.channel import CallThreads


def call() -> Call:
    return Call(Caller(name="ann", role="client"), "ipv4:192.0.2.1:4711", CallThreads("test"))


def test_a_call_has_a_place_in_each_of_its_groups_until_it_ends() -> None:
    places = CallPlaces()
    first, second, third = call(), call(), call()
    places.take(first, {"member ann": 2, "all": 3})
    places.take(second, {"member ann": 2, "all": 3})
    with pytest.raises(InputError, match=r"^member ann has 2 calls at the broker, which is the most at once: end some of them$"):
        places.take(third, {"all": 3, "member ann": 2})
    places.take(third, {"member bob": 2, "all": 3})
    with pytest.raises(InputError, match=r"^all has 3 calls"):
        places.take(call(), {"member eve": 2, "all": 3})
    for one in (first, second, third):
        one.finish()
    for _ in range(2):
        places.take(call(), {"member ann": 2, "all": 2})
    with pytest.raises(InputError, match=r"^member ann has 2 calls"):
        places.take(call(), {"member ann": 2, "all": 3})
