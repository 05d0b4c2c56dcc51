"""Other threads of the process are not disturbed by a capture."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from farflung.frontends.optimizers.traced_numbers import traced_functions
from farflung.frontends.torch.capture import capture
from farflung.frontends.torch.patches import PATCHES, replaced_here
from farflung.frontends.torch.recorder import record


class Double(torch.autograd.Function):
    """A custom function, as the engines' own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """``2 x``."""
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The gradient of ``x``."""
        return gradients[0] * 2


def elsewhere(action: Callable[[], Any]) -> Any:
    """What ``action`` returns in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result()


def during_capture(action: Callable[[], Any]) -> Any:
    """What ``action`` returns in another thread while this thread captures a model."""
    found = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found.append(elsewhere(action))
            loss: torch.Tensor = self.linear(x).sum()
            return loss

    capture(Model(), (torch.zeros(3, 2),))
    return found[0]


def custom_gradient() -> list[float]:
    x = torch.ones(2, requires_grad=True)
    Double.apply(x).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad.tolist()


def hooked_gradient() -> list[float]:
    x = torch.ones(2, requires_grad=True)
    y = x * 3
    y.register_hook(lambda gradient: gradient * 5)  # type: ignore[no-untyped-call]
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad.tolist()


def test_another_thread_computes_custom_functions_during_a_capture() -> None:
    assert during_capture(custom_gradient) == [2.0, 2.0]


def test_another_thread_registers_gradient_hooks_during_a_capture() -> None:
    assert during_capture(hooked_gradient) == [15.0, 15.0]


def test_another_thread_computes_the_same_bits_during_a_capture() -> None:
    """Without oneDNN, gelu has other bits."""
    x = torch.linspace(-3.0, 3.0, 256).reshape(8, 32)
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        other = nn.functional.gelu(x)
    here = nn.functional.gelu(x)
    if torch.equal(here, other):
        pytest.skip("this processor gives the same bits with and without oneDNN")
    assert torch.equal(during_capture(lambda: nn.functional.gelu(x)), here)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.Random().random(),
        lambda: np.random.default_rng().random(),
        lambda: random.SystemRandom().random(),
        lambda: random.SystemRandom().getrandbits(8),
    ],
)
def test_another_thread_draws_numbers_without_a_seed_during_a_capture(draw: Callable[[], Any]) -> None:
    assert during_capture(draw) is not None


def test_another_thread_draws_the_same_weights_during_a_recording() -> None:
    def draw() -> torch.Tensor:
        return nn.init.trunc_normal_(torch.empty(8), generator=torch.Generator().manual_seed(1))

    found = []

    def factory() -> nn.Module:
        found.append(elsewhere(draw))
        return nn.Linear(2, 1)

    record(factory)
    assert torch.equal(found[0], draw())


def test_one_thread_at_a_time_captures_models_and_optimizers() -> None:
    def free() -> bool:
        free = PATCHES.acquire(blocking=False)
        if free:
            PATCHES.release()
        return free

    assert elsewhere(free)
    assert not during_capture(free)
    with traced_functions():
        assert not elsewhere(free)
    assert elsewhere(free)


def test_a_function_is_replaced_in_one_thread_only() -> None:
    class Owner:
        def name(self) -> str:
            return "original"

    with replaced_here(Owner, "name", lambda self: "replacement"):
        assert Owner().name() == "replacement"
        assert elsewhere(Owner().name) == "original"
    assert Owner().name() == "original"


def test_numbers_that_another_thread_draws_do_not_count_as_the_models() -> None:
    end = threading.Event()

    def draw() -> None:
        while not end.is_set():
            np.random.rand()

    with ThreadPoolExecutor(1) as pool:
        drawing = pool.submit(draw)
        try:
            capture(nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), (torch.zeros(3, 2),), mode="eval")
        finally:
            end.set()
        drawing.result()
