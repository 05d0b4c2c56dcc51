"""FLOPs and saved bytes by rule, against PyTorch's own counter and the tensors that autograd really saves."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from farflung.cost import op_costs
from farflung.cost.layout import contiguous, view_strides
from farflung.frontends.torch.capture import capture
from farflung.graph.opset import OpClass, info

PRODUCTS = (OpClass.GEMM, OpClass.CONVOLUTION)


class Attention(nn.Module):
    """Two pre-norm blocks with fused attention, an embedding and a head."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.table = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList(nn.ModuleList([nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)]) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2)
        )
        self.head = nn.Linear(32, 50, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(self.table(tokens), self.dropout)
        batch, length = tokens.shape
        for (norm, qkv, out), mlp in zip(self.blocks, self.mlps, strict=True):
            q, k, v = (t.view(batch, length, 4, 8).transpose(1, 2) for t in qkv(norm(x)).split(32, dim=2))
            y = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
            x = x + out(y.transpose(1, 2).reshape(batch, length, 32))
            x = x + mlp(x)
        return functional.cross_entropy(self.head(x)[:, :-1].reshape(-1, 50), tokens[:, 1:].reshape(-1))


class Convolutions(nn.Module):
    """Convolutions, batch-norm, a residual, pooling, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.pool, self.drop, self.head = nn.MaxPool2d(2), nn.Dropout(0.1), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.stem(x)))
        x = torch.relu(x + self.norm(self.conv(x)))
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return functional.cross_entropy(self.head(self.drop(x)), label)


class Gated(nn.Module):
    """Elementwise operators that keep inputs, results, or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.a(x)) * torch.tanh(self.b(x))
        scaled = gate * torch.rsqrt(gate.pow(2).mean(-1, keepdim=True) + 1e-5)
        return functional.mse_loss(functional.silu(scaled) + torch.exp(-scaled), x)


TOKENS = torch.randint(0, 50, (3, 24), generator=torch.Generator().manual_seed(0))
CASES = {
    "fused attention": (lambda: Attention(0.0), (TOKENS,)),
    "attention with dropout": (lambda: Attention(0.1), (TOKENS,)),
    "convolutions": (Convolutions, (torch.ones(4, 3, 16, 16), torch.tensor([0, 1, 2, 3]))),
    "elementwise": (Gated, (torch.linspace(-1, 1, 128).reshape(8, 16),)),
}


@pytest.fixture(scope="module", params=list(CASES))
def case(request):
    make, inputs = CASES[request.param]
    module = make()
    graph = capture(module, inputs)
    return request.param, module, inputs, graph, op_costs(graph)


def test_products_cost_what_the_counter_of_pytorch_says(case):
    """Equal to the operation; PyTorch counts no fused attention on CPUs, so attention is compared where it is plain."""
    name, module, inputs, graph, cost = case
    with FlopCounterMode(display=False) as counter:
        loss = module(*inputs)
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    backward = counter.get_total_flops()
    kinds = [info(op.target).op_class for op in graph.ops]
    products = [i for i, kind in enumerate(kinds) if kind in PRODUCTS]
    attention = [i for i, kind in enumerate(kinds) if kind is OpClass.ATTENTION]
    plain = "dropout" in name
    assert cost.forward[products].sum() + plain * cost.forward[attention].sum() == forward
    # our rule for attention assumes the fused kernel, which forms the scores again: 2.5 times; plain products take 2 times
    assert cost.backward[products].sum() + plain * 2 * cost.forward[attention].sum() == backward


def test_saved_bytes_are_those_of_autograd(case):
    """Distinct storages, parameters left out, within 2 % (a reading of attention's statistics, scalars)."""
    _, module, inputs, graph, cost = case
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    found: dict[int, int] = {}
    kept = []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            found[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)  # a freed storage's address may be used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(*inputs)
    assert cost.saved.total(0, len(graph.ops)) == pytest.approx(sum(found.values()), rel=0.02)


def test_splitting_a_graph_splits_its_costs(case):
    _, _, _, graph, cost = case
    n = len(graph.ops)
    inputs = sum(op.outputs[0].nbytes for op in graph.placeholders)  # both stages may load them
    for middle in range(1, n, 7):
        assert cost.parameters.total(0, middle) + cost.parameters.total(middle, n) >= cost.parameters.total(0, n)
        assert cost.saved.total(0, middle) + cost.saved.total(middle, n) <= cost.saved.total(0, n) + inputs
        totals = cost.saved.totals(0, range(1, n + 1))
        assert totals[middle - 1] == cost.saved.total(0, middle)


def test_frozen_parameters_need_no_backward():
    module = Gated()
    whole = op_costs(capture(module, CASES["elementwise"][1]))
    for parameter in module.a.parameters():
        parameter.requires_grad_(False)
    graph = capture(module, CASES["elementwise"][1])
    cost = op_costs(graph)
    assert cost.trainable.total(0, len(graph.ops)) == whole.trainable.total(0, len(graph.ops)) / 2
    assert cost.backward.sum() < whole.backward.sum()


@pytest.mark.parametrize(
    ("shape", "order", "new"),
    [
        ((2, 3, 4), (0, 1, 2), (6, 4)),
        ((2, 3, 4), (0, 2, 1), (2, 12)),
        ((2, 3, 4), (1, 0, 2), (6, 4)),
        ((4, 6), (0, 1), (2, 2, 3, 2)),
        ((4, 6), (1, 0), (2, 3, 4)),
        ((4, 6), (1, 0), (3, 8)),
        ((1, 5, 1), (0, 1, 2), (5,)),
        ((2, 1, 3), (2, 1, 0), (3, 2, 1)),
    ],
)
def test_view_strides_agree_with_pytorch(shape, order, new):
    tensor = torch.empty(shape).permute(order)
    try:
        expected = tensor.view(new)
    except RuntimeError:
        expected = None
    found = view_strides(tuple(tensor.shape), tensor.stride(), new)
    assert (found is None) == (expected is None)
    if expected is not None and found is not None:
        pairs = zip(found, expected.stride(), new, strict=True)
        assert all(ours == theirs for ours, theirs, extent in pairs if extent != 1)
    assert contiguous(shape) == torch.empty(shape).stride()
