"""Addresses that workers may advertise, and those that others must not dial."""

from __future__ import annotations

import pytest

from farflung.broker.links.advertised_address import check_advertised
from farflung.errors import InputError


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("", "192.0.2.1:5000"),
        ("192.168.7.9:40000", "192.0.2.1:5000"),
        ("worker.example.org:7071", "192.0.2.1:5000"),
        ("127.0.0.1:40000", "127.0.0.1:5000"),
        ("[::1]:40000", "[::1]:5000"),
        ("[2001:db8:1::7]:40000", "192.0.2.1:5000"),
        ("127.0.0.1:40000", "unknown"),
    ],
)
def test_addresses_of_workers_pass(address: str, source: str) -> None:
    check_advertised(address, source)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("192.0.2.1:22", "can't advertise port 22: use a port from 1024 on with --listen HOST:PORT"),
        ("0.0.0.0:7071", "can't advertise 0.0.0.0, which is no address of one machine"),
        ("169.254.169.254:8080", "can't advertise 169.254.169.254, which is no address of one machine"),
        ("224.0.0.1:7071", "can't advertise 224.0.0.1"),
        ("[ff02::1]:7071", "can't advertise ff02::1"),
        ("127.0.0.1:7071", "on another machine can't advertise 127.0.0.1: use --advertise with an address that others reach"),
        ("[::ffff:127.0.0.1]:7071", "on another machine can't advertise ::ffff:127.0.0.1"),
        ("no address", "a worker can't advertise 'no address'"),
    ],
)
def test_other_addresses_are_refused(address: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        check_advertised(address, "192.0.2.1:5000")
    assert says in str(error.value)
