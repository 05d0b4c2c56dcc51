"""A forward that changes plain attributes is refused if the next step would differ, and accepted otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from farflung import train
from farflung.api import capture
from farflung.errors import CaptureError, TrainingError


class Part(nn.Module):
    """Attributes of all kinds, and a forward that a test gives."""

    def __init__(self, body: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self._n, self.n, self.on, self.rate, self.word = 0, 0, True, 1.5, "a"
        self.sizes, self.table, self.seen, self.pair = [1, [2]], {"a": [1], "b": 2}, {1}, ([1], 2)
        self.nothing: Any = None
        self.hidden: Any = torch.zeros(4)
        self.calls: Any = torch.tensor(0)
        self.kept: list[Tensor] = []
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.linear(x).square().mean()
        result: Tensor | None = self.body(self, h)
        return h if result is None else result


class Net(nn.Module):
    def __init__(self, body: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.part = Part(body)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.part(x)
        return result


def count(part: Any, h: Tensor) -> Any:
    part.n += 1
    return h * part.n


def private(part: Any, h: Tensor) -> Any:
    part._n += 1
    return h * part._n


def toggle(part: Any, h: Tensor) -> Any:
    part.on = not part.on
    return h if part.on else -h


def first_call(part: Any, h: Tensor) -> Any:
    if part.nothing is None:
        part.nothing = "seen"
        return h
    return 2 * h


def anneal(part: Any, h: Tensor) -> Any:
    part.rate *= 0.5
    return h * part.rate


def grow(part: Any, h: Tensor) -> Any:
    part.sizes[1].append(3)
    return h * len(part.sizes[1])


def tally(part: Any, h: Tensor) -> Any:
    part.table["b"] += 1
    return h * part.table["b"]


def gather(part: Any, h: Tensor) -> Any:
    part.seen.add(len(part.seen) + 1)
    return h * len(part.seen)


def within(part: Any, h: Tensor) -> Any:
    part.pair[0][0] += 1
    return h * part.pair[0][0]


def carry(part: Any, h: Tensor) -> Any:
    result = h + part.hidden.sum()
    part.hidden = part.hidden + h.detach()
    return result


def carry_count(part: Any, h: Tensor) -> Any:
    result = h * part.calls
    part.calls = part.calls + 1
    return result


def carry_late(part: Any, h: Tensor) -> Any:
    result = h if part.nothing is None else h + part.nothing
    part.nothing = h.detach()
    return result


def collect(part: Any, h: Tensor) -> Any:
    part.kept.append(h.detach())
    return torch.stack(part.kept).sum() + h


def added(part: Any, h: Tensor) -> Any:
    part.fresh = getattr(part, "fresh", 0) + 1
    return h * part.fresh


CHANGED = [
    (count, "n"),
    (private, "_n"),
    (toggle, "on"),
    (first_call, "nothing"),
    (anneal, "rate"),
    (grow, "sizes"),
    (tally, "table"),
    (gather, "seen"),
    (within, "pair"),
    (carry, "hidden"),
    (carry_count, "calls"),
    (carry_late, "nothing"),
    (collect, "kept"),
    (added, "fresh"),
]


def plain(net: Net) -> str:
    return repr({name: value for name, value in vars(net.part).items() if not name.startswith("_") or name == "_n"})


@pytest.mark.parametrize(("body", "name"), CHANGED)
def test_a_change_that_the_next_step_would_see_is_refused(body: Any, name: str) -> None:
    net = Net(body)
    before, sizes = plain(net), net.part.sizes
    with pytest.raises(CaptureError) as caught:
        capture(net, (torch.ones(2, 4),))
    assert str(caught.value) == (
        f"the forward of module part changes self.{name}, and every step would use its first value: "
        f"use a registered buffer (self.register_buffer({name!r}, torch.tensor(...)), changed in place)"
    )
    assert plain(net) == before, "restored"
    assert net.part.sizes is sizes


@pytest.mark.parametrize("body", [count, grow, carry, carry_count, carry_late, collect])
def test_a_module_without_memory_is_refused_too(body: Any) -> None:
    for source in (Net(body).to("meta"), lambda: Net(body)):
        with pytest.raises(CaptureError, match="the forward of module part changes self"):
            capture(source, (torch.ones(2, 4),))


def note_size(part: Any, h: Tensor) -> None:
    part.sizes = [h.dim(), h.numel()]
    part.word = f"{tuple(h.shape)}"
    part.table["shape"] = tuple(h.shape)


def cache_number(part: Any, h: Tensor) -> Any:
    if part.nothing is None:
        part.nothing = 3.0
    return h * part.nothing


def keep_result(part: Any, h: Tensor) -> None:
    part.hidden = part.nothing = h.detach()
    part.kept = [h]


def nothing_changes(part: Any, h: Tensor) -> Any:
    part.n = part.n + 0
    return h * len(part.sizes)


@pytest.mark.parametrize("body", [note_size, cache_number, keep_result, nothing_changes])
def test_a_change_that_no_step_sees_is_accepted(body: Any) -> None:
    net = Net(body)
    before = plain(net)
    assert capture(net, (torch.ones(2, 4),)).ops
    assert plain(net) == before


def test_train_says_the_same() -> None:
    with pytest.raises(CaptureError, match=r"module part changes self\.n, and every step would use its first value"):
        train(Net(count), lambda step, index: (torch.ones(2, 4),), steps=3)


class Buffered(nn.Module):
    n: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("n", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        result: Tensor = self.linear(x).square().mean() * self.n
        return result


def test_the_remedy_counts() -> None:
    result = train(Buffered(), lambda step, index: (torch.ones(2, 4),), steps=3, optimizer="sgd", lr=1e-9)
    assert [round(loss / result.losses[0], 4) for loss in result.losses] == [1.0, 2.0, 3.0]


def test_a_set_that_was_filled_again_is_no_change() -> None:
    """The table of a set that shrank keeps its size, so filling it again changes the order of its items."""

    class WithSet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(2, 1)
            self.kinds = set(range(64))
            self.kinds -= set(range(64)) - {1, 8}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.line(x).mean()

    module = WithSet()
    before = list(module.kinds)
    again = set(before)
    assert list(again) != before
    assert capture(module, (torch.zeros(2, 2),)).ops
    assert module.kinds == again


class Frozen(dict[str, int]):
    """A configuration that allows no change."""

    def update(self, *args: object, **kwargs: object) -> None:
        raise TypeError("it is frozen")


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.settings = Frozen(size=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).sum() * self.settings["size"]


def test_what_did_not_change_is_left_alone() -> None:
    module = Configured()
    capture(module, (torch.zeros(1, 2),))
    assert module.settings == {"size": 2}


class NotANumber(nn.LSTM):
    """An export changes the list of weights of an LSTM, and NaN is not equal to itself."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        result: Tensor = super().forward(x)[0].sum() * float("nan")
        return result


def test_a_constant_that_is_no_number_changes_nothing() -> None:
    with pytest.raises(TrainingError, match="not a finite number"):
        train(NotANumber(3, 4), lambda step, index: (torch.zeros(2, 5, 3),), steps=1)
