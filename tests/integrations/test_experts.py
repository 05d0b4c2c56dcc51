"""Clusters, routers and mixtures of experts, against the same written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from farflung.errors import InputError
from farflung.integrations.experts import Centers, Experts

CENTERS = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])


class Counted(nn.Module):
    """A linear model that counts the samples that it computes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.rows = nn.Linear(2, 5), 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        found: Tensor = self.body(x)
        return found


def models() -> list[Counted]:
    return [Counted(seed) for seed in range(3)]


def samples() -> Tensor:
    random = torch.Generator().manual_seed(1)
    return CENTERS.repeat(20, 1) + 0.5 * torch.randn(60, 2, generator=random)


def test_k_means_finds_the_clusters_and_repeats_itself() -> None:
    x = samples()
    found = Centers.of(x, 3)
    assert torch.equal(found.centers, Centers.of(x, 3).centers)
    order = torch.cdist(CENTERS, found.centers).argmin(dim=1)
    assert sorted(order.tolist()) == [0, 1, 2]
    assert torch.equal(found.nearest(x), order.repeat(20))
    for number in range(3):
        torch.testing.assert_close(found.centers[number], x[found.nearest(x) == number].mean(dim=0))


def test_a_sample_is_computed_by_its_expert_alone() -> None:
    x, experts = samples(), models()
    router = Centers(CENTERS)
    output = Experts(experts, router)(x)
    assert [expert.rows for expert in experts] == router.nearest(x).bincount(minlength=3).tolist()
    for row, number in enumerate(router.nearest(x).tolist()):
        torch.testing.assert_close(output[row], experts[number].body(x[row]))


@pytest.mark.parametrize("mix", ["outputs", "probabilities"])
def test_several_experts_are_mixed_by_the_routers_probabilities(mix: Any) -> None:
    x, experts = samples(), models()
    router = Centers(CENTERS, temperature=8.0)
    output = Experts(experts, router, top=2, mix=mix)(x)
    for row in range(len(x)):
        chance = router(x)[row].exp()
        two = chance.topk(2).indices.tolist()
        total = sum(float(chance[number]) for number in two)
        each = [experts[number].body(x[row]) for number in two]
        each = [one.softmax(-1) for one in each] if mix == "probabilities" else each
        wanted = sum(chance[number] / total * one for number, one in zip(two, each, strict=True))
        torch.testing.assert_close(output[row], wanted.log() if mix == "probabilities" else wanted)


def test_all_experts_at_once_are_the_papers_ensemble() -> None:
    """With probabilities that the router gives, the mean of all outputs."""
    x, experts = samples(), models()
    router = Centers(CENTERS, temperature=8.0)
    every = torch.stack([expert.body(x) for expert in experts], dim=1)
    torch.testing.assert_close(Experts(experts, router, top=3)(x), (router(x).exp().unsqueeze(2) * every).sum(dim=1))


def test_a_router_of_ones_own_may_read_other_features() -> None:
    x, experts = samples(), models()

    def sign(first: Tensor) -> Tensor:
        return torch.stack([first, -first, first.new_full(first.shape, -9.0)], dim=1)

    output = Experts(experts, sign, features=lambda inputs: inputs[:, 0])(x)
    left = x[:, 0] < 0
    torch.testing.assert_close(output[left], experts[1].body(x[left]))
    torch.testing.assert_close(output[~left], experts[0].body(x[~left]))


REFUSED: dict[str, tuple[Any, str]] = {
    "top": (lambda: Experts(models(), Centers(CENTERS), top=4), "top = 4 of 3 experts: set it to at least 1 and at most 3"),
    "mix": (lambda: Experts(models(), Centers(CENTERS), mix="mean"), "mix = 'mean': known are outputs, probabilities"),  # type: ignore[arg-type]
    "router": (
        lambda: Experts(models()[:2], Centers(CENTERS))(samples()),
        "scores of shape [60, 3] for 60 samples and 2",
    ),
    "centers": (lambda: Centers(torch.zeros(3)), "centers of shape [3] with temperature 1: give a row for each expert"),
    "count": (lambda: Centers.of(torch.zeros(8, 2), 2), "2 centers of features of shape [8, 2]: give a row for each sample"),
}


@pytest.mark.parametrize(("call", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert text in str(caught.value)
