"""What export would lose or a graph can't hold: refused with a text that says what to change, or kept exactly."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from farflung.errors import CaptureError
from farflung.frontends.torch.capture import capture
from farflung.frontends.torch.recorder import record
from farflung.graph.ir import StateKind
from farflung.graph.validate import validate
from tests.support.engines.replay import run


class Net(nn.Module):
    """A linear layer and what the test does with its result."""

    def __init__(self, body, **buffers):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.body = body
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x):
        return self.body(self, x)


class Peek(torch.autograd.Function):
    """Its backward looks at values."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 if gradient.sum() > 0 else gradient


class Broken(torch.autograd.Function):
    """Its backward fails."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no")


class Noise(torch.autograd.Function):
    """Its backward draws random numbers."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand_like(gradient)


def hooked(net, x):
    y = net.linear(x)
    y.register_hook(lambda gradient: gradient * 2)
    return y.sum()


def branch(net, x):
    return net.linear(x).sum() if x.sum() > 0 else x.sum() * net.linear.weight.sum()


def autocast(net, x):
    with torch.autocast("cpu", torch.bfloat16):
        return net.linear(x).float().sum()


def grow(net, x):
    net.linear.weight.data.mul_(2)
    return net.linear(x).sum()


def cond(net, x):
    return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (net.linear(x),)).sum()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            lambda net, x: Peek.apply(net.linear(x)).sum(),
            (
                r"^in the backward of tests\.frontends\.scenarios\.test_traps\.Peek, test_traps\.py:41: "
                r"return gradient \* 2 if .* depends .*: use torch\.where"
            ),
        ),
        (
            lambda net, x: Broken.apply(net.linear(x)).sum(),
            r"Broken is a custom autograd.Function whose backward can't be traced \(ValueError: no.*: write the comp",
        ),
        (
            lambda net, x: Noise.apply(net.linear(x)).sum(),
            "the backward of .*Noise draws random numbers: draw them in the forward",
        ),
        (hooked, "registers a gradient hook"),
        (branch, r"depends on tensor data, and a graph has no values: use torch.where"),
        (
            lambda net, x: net.linear(x)[x.sum(1) > 0].sum(),
            "depends on tensor data, and a graph has no values: keep shapes fixed",
        ),
        (autocast, 'set precision="bf16" of train or of the job instead'),
        (lambda net, x: torch.linalg.det(net.linear(x)[:, :4]).sum(), "not on the operator allow-list"),
        (
            lambda net, x: net.linear(x),
            r"the loss must be a floating-point scalar, but the forward returns float32 of shape \(4, 4\)",
        ),
        (lambda net, x: {"logits": net.linear(x)}, r"gives no output called loss \(it gives logits\)"),
        (grow, "use the parameter itself"),
        (cond, "control-flow operator cond"),
        (lambda net, x: net.linear(x).expand(2, 4, 4).add_(1).sum(), "can't"),
    ],
)
def test_refused_with_a_remedy(body, text):
    with pytest.raises(CaptureError, match=text):
        capture(Net(body), (torch.ones(4, 4),))


class Double(torch.autograd.Function):
    """Looks like a function of torch's own, which capture lets through."""

    __module__ = "torch.nn.functional"

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


@pytest.mark.parametrize("builtin", [False, True], ids=["as installed", "as in torch 2.15"])
def test_capture_accepts_both_forms_of_function_apply(monkeypatch, builtin):
    if builtin:
        monkeypatch.setattr(torch.autograd.Function, "apply", vars(torch._C._FunctionBase)["apply"])
    graph = capture(Net(lambda net, x: Double.apply(net.linear(x)).sum()), (torch.ones(4, 4),))
    assert "aten.mul.Tensor" in [op.target for op in graph.ops]


def test_hooks_of_modules_and_parameters_are_refused():
    net = Net(lambda net, x: net.linear(x).sum())
    handle = net.linear.register_full_backward_hook(lambda *_: None)
    with pytest.raises(CaptureError, match="module linear has a backward hook"):
        capture(net, (torch.ones(4, 4),))
    handle.remove()
    net.linear.weight.register_hook(lambda gradient: gradient)
    with pytest.raises(CaptureError, match=r"parameter linear\.weight has a gradient hook"):
        capture(net, (torch.ones(4, 4),))


class Lazy(nn.Module):
    """Its layer learns its sizes from the first batch."""

    def __init__(self):
        super().__init__()
        self.linear = nn.LazyLinear(4)

    def forward(self, x):
        return self.linear(x).sum()


def test_lazy_layers_need_a_first_forward():
    with pytest.raises(CaptureError) as caught:
        capture(Lazy(), (torch.ones(4, 4),))
    assert str(caught.value) == (
        "linear.weight of LazyLinear has no shape before the first forward: call the module once on a batch and pass that "
        "module, or use a layer that has its sizes as arguments"
    )
    with pytest.raises(CaptureError, match="the factory makes a lazy layer, which has no shape before the first forward: give"):
        record(Lazy)
    module = Lazy()
    module(torch.ones(4, 4))
    assert capture(module, (torch.ones(4, 4),)).parameters


def test_inputs_must_be_tensors():
    net = Net(lambda net, x: net.linear(x).sum())
    with pytest.raises(CaptureError, match="example input #0 is a int, and each input must be a tensor or an array"):
        capture(net, (3,))


def test_the_mode_is_checked():
    with pytest.raises(CaptureError, match="mode must be 'train' or 'eval', got 'test'"):
        capture(Net(lambda net, x: net.linear(x).sum()), (torch.ones(4, 4),), mode="test")


def inplace_chain(net, x):
    h = net.linear(x)
    h.add_(1.0).mul_(0.5).relu_()
    return h.pow(2).sum()


def write_row(net, x):
    h = net.linear(x).sin()
    h[1] = 0.0
    h[:, 2].mul_(3.0)
    return h.exp().sum()


def stale_view(net, x):
    h = net.linear(x).sin()
    row, flat = h[2], h.view(-1)
    h.add_(1.0)
    flat[3:5].mul_(2.0)
    return (row * row).sum() + h.t().cos().sum() + flat.sum()


def pieces(net, x):
    h = net.linear(x).sin()
    y = x.clone()
    a, b = y.split(2, dim=1)
    b.mul_(4.0)
    first, *_ = y.unbind(0)
    first.add_(2.0)
    return (h[:, :2] * a * b).sum() + (h * y).cos().sum()


def masked(net, x):
    h = net.linear(x).sin()
    h.masked_fill_(x > 0.5, 0.25)
    h.transpose(0, 1).unsqueeze(0)[0, 1].zero_()
    return h.exp().sum()


def no_grad_region(net, x):
    h = net.linear(x)
    with torch.no_grad():
        scale = h.abs().mean()
        with torch.enable_grad():
            inner = h.sum()
    return (h / scale).pow(2).sum() + inner


def constants(net, x):
    return (net.linear(x) * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.tensor(0.5)).pow(2).sum()


def casts(net, x):
    h = net.linear(x).to(torch.float32).double()
    return h.type_as(x).float().contiguous().pow(2).sum() + functional.dropout(h, 0.5, training=False).sum().float()


@pytest.mark.parametrize(
    "body",
    [inplace_chain, write_row, stale_view, pieces, masked, no_grad_region, constants, casts],
    ids=lambda body: body.__name__,
)
def test_kept_exactly(body):
    torch.manual_seed(0)
    net, x = Net(body), torch.randn(4, 4)
    graph = capture(net, (x,))
    validate(graph)
    states = {name: value.detach().clone().requires_grad_() for name, value in net.named_parameters()}
    for state in graph.states:
        if state.kind is StateKind.CONSTANT:
            states[state.name] = torch.frombuffer(bytearray(state.data), dtype=torch.float32).reshape(state.spec.shape)
    loss = net(x)
    loss.backward()
    outputs, _ = run(graph, states, {"x": x})
    outputs["loss"].backward()
    assert torch.equal(outputs["loss"], loss)
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(states[name].grad, parameter.grad, rtol=1e-6, atol=1e-7)


def test_no_grad_is_kept_per_operator():
    graph = capture(Net(no_grad_region), (torch.ones(4, 4),))
    assert [op.target for op in graph.ops if op.no_grad] == ["aten.abs.default", "aten.mean.default"]


def test_inactive_dropout_and_casts_vanish():
    graph = capture(Net(casts), (torch.ones(4, 4),))
    assert [op.target for op in graph.ops if "dropout" in op.target or op.target == "aten.to.dtype"] == ["aten.to.dtype"] * 3


def test_buffers_that_change_become_state_updates():
    def body(net, x):
        net.calls.add_(1)
        net.level = 0.9 * net.level + 0.1 * x.mean()
        return net.linear(x).sum() * net.level

    net = Net(body, calls=torch.zeros((), dtype=torch.int64), level=torch.ones(()))
    graph = capture(net, (torch.ones(4, 4),))
    assert sorted(name for name, _ in graph.state_updates) == ["calls", "level"]
    states = {name: value.detach() for name, value in [*net.named_parameters(), *net.named_buffers()]}
    x = torch.randn(4, 4)
    outputs, updates = run(graph, states, {"x": x})
    expected = net(x)
    assert torch.equal(outputs["loss"], expected)
    assert torch.equal(updates["calls"], net.calls)
    assert torch.equal(updates["level"], net.level)


def test_dead_draws_stay_so_that_later_ones_keep_their_number():
    def body(net, x):
        functional.dropout(x, 0.5)
        return functional.dropout(net.linear(x), 0.5).sum()

    graph = capture(Net(body), (torch.ones(4, 4),))
    assert [op.rng for op in graph.ops if op.target == "aten.dropout.default"] == [0, 1]


def test_keyword_inputs_outputs_by_name_and_evaluation():
    def body(net, x):
        h = functional.dropout(net.linear(x), 0.5, net.training)
        return {"loss": h.sum(), "logits": h}

    net = Net(body)
    graph = capture(net, {"x": torch.ones(4, 4)}, mode="eval", outputs=("loss", "logits"))
    assert [name for name, _ in graph.outputs] == ["loss", "logits"]
    assert graph.mode == "eval"
    assert not any(op.rng is not None for op in graph.ops)
    assert net.training


def test_training_state_of_parts_is_kept():
    net = Net(lambda net, x: net.norm(net.linear(x)).sum())
    net.norm = nn.BatchNorm1d(4).eval()
    graph = capture(net, (torch.ones(4, 4),))
    assert [op.target for op in graph.ops if "batch_norm" in op.target] == ["aten.batch_norm.default"]
    assert not graph.state_updates


class Determinant(nn.Module):
    def forward(self, x):
        y = x * 2
        return torch.linalg.det(y)


def test_an_unknown_operator_is_found_in_the_users_code():
    inner = Determinant()
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(inner))
    line = Determinant.forward.__code__.co_firstlineno + 2
    with pytest.raises(CaptureError) as caught:
        capture(net, (torch.ones(4, 4),))
    text = str(caught.value)
    assert text.startswith("module 1.0 uses aten.linalg_det.default, which is not on the operator allow-list (in the forward, ")
    assert f"test_traps.py line {line}: return torch.linalg.det(y)): write it with other torch operators" in text
    assert "linalg_qr" not in text


def test_the_error_of_grouped_experts_names_the_workaround():
    pytest.importorskip("transformers.integrations.moe")

    def body(net, x):
        ends = torch.tensor([1, 4], dtype=torch.int32)
        return torch.ops.transformers.grouped_mm_fallback(net.linear(x), net.linear.weight.expand(2, 4, 4), ends).sum()

    with pytest.raises(CaptureError, match='build the model with experts_implementation="batched_mm"'):
        capture(Net(body), (torch.ones(4, 4),))


def test_complex_weights_are_refused():
    net = Net(lambda net, x: (net.linear(x) * net.turn).abs().sum(), turn=torch.ones(4, dtype=torch.complex64))
    with pytest.raises(CaptureError, match=r"turn holds complex numbers, .* use torch\.view_as_complex in the forward"):
        capture(net, (torch.ones(4, 4),))
