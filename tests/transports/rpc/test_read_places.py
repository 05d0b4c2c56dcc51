"""A caller's group takes a bounded number of messages from the network at once, and all groups together."""

from __future__ import annotations

import asyncio

import pytest

from farflung.transports.rpc import read_places
from farflung.transports.rpc.read_places import ReadPlaces


async def _hold(
    places: ReadPlaces, groups: tuple[str, ...], inside: list[str], end: asyncio.Event, *, leave: bool = False
) -> None:
    async with places.place(groups) as place:
        inside.append("".join(groups))
        if leave:
            place.leave()
        await end.wait()
    place.leave()  # nothing happens


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_group_has_its_places_and_others_theirs() -> None:
    async def run() -> None:
        places, end, inside = ReadPlaces(), asyncio.Event(), list[str]()
        calls = [asyncio.create_task(_hold(places, groups, inside, end)) for groups in (*[("a",)] * 9, ("b",), ())]
        await _settle()
        assert sorted(inside) == ["", *["a"] * read_places.OF_GROUP, "b"]
        end.set()
        await asyncio.gather(*calls)
        assert sorted(inside) == ["", *["a"] * 9, "b"]

    asyncio.run(run())


def test_a_few_members_with_many_slow_messages_do_not_keep_others_out() -> None:
    async def run() -> None:
        places, end, inside = ReadPlaces(), asyncio.Event(), list[str]()
        slow = [(name,) for name in "abcdef" for _ in range(read_places.OF_GROUP)]
        calls = [asyncio.create_task(_hold(places, groups, inside, end)) for groups in [*slow, ("g",), ("h",)]]
        await _settle()
        assert {"g", "h"} <= set(inside)
        assert len(inside) <= read_places.OF_ALL
        end.set()
        await asyncio.gather(*calls)
        assert len(inside) == len(slow) + 2

    asyncio.run(run())


def test_who_breaks_off_when_it_gets_its_place_gives_it_back() -> None:
    async def run() -> None:
        places, end, inside = ReadPlaces(), asyncio.Event(), list[str]()
        calls = [asyncio.create_task(_hold(places, ("a",), inside, end)) for _ in range(read_places.OF_GROUP + 2)]
        await _settle()
        end.set()
        await asyncio.sleep(0)  # places are free, and those that wait do not know it yet
        calls[-1].cancel()
        calls[-2].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        end.clear()
        again = [asyncio.create_task(_hold(places, ("a",), inside, end)) for _ in range(read_places.OF_GROUP)]
        inside.clear()
        await _settle()
        assert len(inside) == read_places.OF_GROUP
        end.set()
        await asyncio.gather(*again)

    asyncio.run(run())


def test_who_leaves_early_lets_another_in() -> None:
    async def run() -> None:
        places, end, inside = ReadPlaces(), asyncio.Event(), list[str]()
        calls = [asyncio.create_task(_hold(places, ("a",), inside, end, leave=True)) for _ in range(9)]
        await _settle()
        assert len(inside) == 9
        end.set()
        await asyncio.gather(*calls)

    asyncio.run(run())


def test_all_groups_together_are_bounded_and_a_call_that_breaks_off_gives_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_places, "OF_ALL", 2)

    async def run() -> None:
        places, end, inside = ReadPlaces(), asyncio.Event(), list[str]()
        calls = [asyncio.create_task(_hold(places, (name,), inside, end)) for name in "abc"]
        await _settle()
        assert inside == ["a", "b"]
        calls[0].cancel()
        await _settle()
        assert inside == ["a", "b", "c"]
        end.set()
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(run())
