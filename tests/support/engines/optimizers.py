"""Optimizers for tests, and the loop that each of them is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung.frontends.optimizers.capture import Trained, capture_rules
from farflung.frontends.optimizers.named_optimizers import Lion, name_of

Factory = Callable[[list[nn.Parameter]], Any]


class Lamb(torch.optim.Optimizer):
    """A user's own optimizer: Python numbers as state, norms, ``math.sqrt`` and ``.data``."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99)})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["m"], state["v"] = torch.zeros_like(p.data), torch.zeros_like(p.data)
                state["step"] += 1
                state["m"].mul_(beta1).add_(p.grad.data, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(p.grad.data, p.grad.data, value=1 - beta2)
                size = group["lr"] * math.sqrt(1 - beta2 ** state["step"]) / (1 - beta1 ** state["step"])
                update = state["m"] / (state["v"].sqrt() + 1e-6)
                trust = min(10.0, p.data.norm().item() / max(update.norm().item(), 1e-9))
                p.data.add_(update, alpha=-size * trust)


class Phased(torch.optim.Optimizer):
    """A branch that changes after many steps, and a state that is replaced instead of changed."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 1e-2, turn: int = 12) -> None:
        super().__init__(params, {"lr": lr, "turn": turn})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                state["mean"] = 0.9 * state.get("mean", torch.zeros_like(p)) + p.grad
                if state["step"] > group["turn"]:
                    p.sub_(group["lr"] * state["mean"].sign())
                else:
                    p.sub_(group["lr"] * state["mean"])


def matrices_and_rest(params: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW in two groups for the rest."""
    rest = [p for p in params if p.ndim != 2]
    groups: list[dict[str, Any]] = [{"params": rest[:1], "weight_decay": 0.0, "lr": 3e-3}, {"params": rest[1:]}]
    return [torch.optim.Muon([p for p in params if p.ndim == 2], lr=1e-2), torch.optim.AdamW(groups, lr=1e-2)]


#: Row of the table -> factory. Every optimizer of ``torch.optim`` that can be captured is in it.
OPTIMIZERS: dict[str, Factory] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1),
    "SGD, momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "SGD, Nesterov": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, maximize=False),
    "Adam": lambda params: torch.optim.Adam(params, lr=1e-2),
    "Adam, AMSGrad": lambda params: torch.optim.Adam(params, lr=1e-2, amsgrad=True, weight_decay=0.01),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=1e-2),
    "RMSprop, centered": lambda params: torch.optim.RMSprop(params, lr=1e-2, centered=True, momentum=0.9),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2, lr_decay=0.01, initial_accumulator_value=0.1),
    "Adadelta": torch.optim.Adadelta,
    "Adamax": lambda params: torch.optim.Adamax(params, lr=1e-2),
    "NAdam": lambda params: torch.optim.NAdam(params, lr=1e-2),
    "RAdam": lambda params: torch.optim.RAdam(params, lr=1e-2),
    "Adafactor": lambda params: torch.optim.Adafactor(params, lr=1e-2),
    "ASGD": lambda params: torch.optim.ASGD(params, lr=1e-2, t0=5),
    "Rprop": lambda params: torch.optim.Rprop(params, lr=1e-2),
    "Muon and AdamW": matrices_and_rest,
    "Lion": lambda params: Lion(params, lr=1e-3, weight_decay=0.1),
    "own: LAMB": Lamb,
    "own: a branch on the step": Phased,
}


class Net(nn.Module):
    """Matrices, vectors, a normalization and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.mix, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.norm(self.up(x)).tanh()
        return functional.cross_entropy(self.out(x + self.mix(x).tanh()), y)


def batch(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
    """Samples of a micro-batch."""
    random = torch.Generator().manual_seed(100 * step + micro_batch)
    return torch.randn(4, 6, generator=random), torch.randint(0, 5, (4,), generator=random)


def plain_loop(
    make: Factory,
    steps: int,
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
    after: Callable[..., None] | None = None,
) -> dict[str, Tensor]:
    """The weights after a loop as users write it; ``after`` gets each optimizer after each step."""
    model = Net()
    made = make(list(model.parameters()))
    optimizers = made if isinstance(made, list) else [made]
    schedulers = [] if schedule is None else [schedule(optimizer) for optimizer in optimizers]
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(*batch(step, 0)).backward()
        for optimizer in optimizers:
            optimizer.step()
            if after is not None:
                after(optimizer)
        for scheduler in schedulers:
            scheduler.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def table() -> list[str]:
    """The rows of the table in docs/optimizers.md: what the rules of each optimizer keep for a matrix and for a vector."""
    rows = []
    for row, make in OPTIMIZERS.items():
        matrix, vector = nn.Parameter(torch.zeros(256, 128)), nn.Parameter(torch.zeros(256))
        made = make([matrix, vector])
        kept: dict[int, float] = {}
        for optimizer in made if isinstance(made, list) else [made]:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    shape = tuple(p.shape)
                    book = capture_rules([Trained(group=0, optimizer=optimizer, settings=group, dtype=p.dtype, shape=shape)])
                    kept[p.ndim] = sum(slot.nbytes(shape) for slot in book.rules[0].states) / p.nbytes
        names = dict.fromkeys(name_of(optimizer) for optimizer in (made if isinstance(made, list) else [made]))
        shown = ", ".join(f"`{name}`" for name in names if name != "captured") or "none"
        rows.append(f"| {row} | {shown} | {kept[2]:.2f} | {kept[1]:.2f} |")
    return rows
