"""The states that a part begins with: what peers send is counted, and what nobody has is an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as change
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from farflung.engines.base import Array
from farflung.errors import ConnectionLost, WireError
from farflung.messages.array_stream import PIECE_BYTES, tensor_pieces
from farflung.messages.commands import LiveStart
from farflung.messages.data import LentPiece
from farflung.step.inbox import Inbox
from farflung.step.stages.state_copies import most_state_bytes, most_state_tensors
from farflung.step.stages.state_hashes import state_hashes
from farflung.worker.first_states import StateFetch
from farflung.worker.retained_states import Continuation, RetainedStates
from tests.support.network.futures import PATIENCE, later
from tests.support.network.quiet import until
from tests.support.steps.small_runs import small_setup

SETUP = small_setup("a")
NAMES = SETUP.subgraphs[0].states


def arrays() -> dict[str, Array]:
    return {name: np.full(SETUP.graph.state[name].spec.shape, 3, np.float32) for name in NAMES}


def pieces(found: Mapping[str, Array]) -> list[LentPiece]:
    made = tensor_pieces(found.items())
    return [LentPiece(run="r", name=one.name, array=one.array, last=one.last, sections=one.sections) for one in made]


class Fetching:
    """A part that waits for all its states from the peer ``b``."""

    def __init__(self, hashes: Mapping[str, str] | None = None) -> None:
        self.inbox, self.asked = Inbox(), list[str]()
        start = LiveStart(step=7, committed=7, decision=None, moves={"b": tuple(NAMES)}, hashes=dict(hashes or {}))
        self.fetch = StateFetch(Continuation(start), "r", 2, RetainedStates())
        endpoint: Any = SimpleNamespace(post=lambda peer, frame, urgency: self.asked.append(peer))
        self.done = later(lambda: self.fetch.fetch(SETUP, endpoint, self.inbox))
        until(lambda: self.asked)


def test_states_of_a_peer_are_put_together() -> None:
    fetching = Fetching()
    for piece in pieces(arrays()):
        fetching.fetch.receive("b", piece)
    fetching.fetch.complete("b", fetching.inbox)
    fetching.done.result(PATIENCE)
    found = fetching.fetch.states([*NAMES, "other"])
    assert found.keys() == set(NAMES)
    assert all(np.array_equal(found[name], array) for name, array in arrays().items())
    assert fetching.fetch.optimizer(NAMES) == {}


def test_a_state_that_nobody_has_is_an_error() -> None:
    fetching = Fetching()
    lacking = dict(list(arrays().items())[1:])
    for piece in pieces(lacking):
        fetching.fetch.receive("b", piece)
    fetching.fetch.complete("b", fetching.inbox)
    with pytest.raises(ConnectionLost, match=f"no worker has retained '{next(iter(NAMES))}' after 7 steps"):
        fetching.done.result(PATIENCE)


def test_a_peer_sends_no_more_than_the_states_can_have() -> None:
    fetching = Fetching()
    with pytest.raises(WireError, match="c was not asked for states of run r; they are refused"):
        fetching.fetch.receive("c", pieces(arrays())[0])
    (large,) = pieces({next(iter(NAMES)): np.zeros(1 << 18, np.float32)})
    fetching.fetch.receive("b", large)
    with pytest.raises(WireError, match=r"b sends more than .* bytes of states, which is more than those have"):
        fetching.fetch.receive("b", large)
    fetching.inbox.abort(WireError("over"))
    with pytest.raises(WireError, match="over"):
        fetching.done.result(PATIENCE)


def test_a_peer_sends_no_more_pieces_than_the_states_can_have() -> None:
    fetching = Fetching()
    (empty,) = pieces({next(iter(NAMES)): np.zeros(0, np.float32)})
    most = most_state_tensors(NAMES) + most_state_bytes(SETUP, NAMES) // PIECE_BYTES
    for _ in range(most):
        fetching.fetch.receive("b", replace(empty, last=False))
    with pytest.raises(WireError, match=rf"b sends more than {most} pieces of states, which is more than those have"):
        fetching.fetch.receive("b", empty)
    fetching.inbox.abort(WireError("over"))
    with pytest.raises(WireError, match="over"):
        fetching.done.result(PATIENCE)


def test_states_that_were_cut_are_laid_to_their_sender() -> None:
    fetching = Fetching()
    fetching.fetch.receive("b", replace(pieces(arrays())[0], last=False))
    fetching.fetch.complete("b", fetching.inbox)
    with pytest.raises(WireError, match=r"the states that b sends: tensor .* was cut in transfer") as caught:
        fetching.done.result(PATIENCE)
    assert caught.value.blames == "b"


@pytest.mark.parametrize("honest", [True, False])
def test_a_copy_is_compared_with_the_hash_of_its_owner(*, honest: bool) -> None:
    right = arrays()
    fetching = Fetching(state_hashes(right))
    for piece in pieces(right if honest else {**right, NAMES[0]: right[NAMES[0]] + 1}):
        fetching.fetch.receive("b", piece)
    fetching.fetch.complete("b", fetching.inbox)
    if honest:
        fetching.done.result(PATIENCE)
        return
    with pytest.raises(WireError, match=f"the copy of '{NAMES[0]}' that b sends is not what its owner computed") as caught:
        fetching.done.result(PATIENCE)
    assert caught.value.blames == "b"


@pytest.mark.parametrize("optimizer", [{"name": "adamw", "update": "master"}, {"name": "adamw", "update": "stochastic"}])
def test_the_bound_holds_float32_copies_of_large_parameters(optimizer: dict[str, Any]) -> None:
    """Parameters in bfloat16 have slots in float32: with AdamW and a copy, 14 bytes for 2."""
    states = tuple(
        change(state, spec=change(state.spec, dtype="bfloat16", shape=(1 << 20, 8)) if state.name in NAMES else state.spec)
        for state in SETUP.graph.states
    )
    setup = change(small_setup("a", optimizer=optimizer), graphs={4: change(SETUP.graph, states=states)})
    numbers = len(NAMES) * (8 << 20)
    assert 14 * numbers <= most_state_bytes(setup, NAMES) < 32 * numbers
