"""Keyed random numbers: the public context, the operators, and the process's own generator."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from farflung.engines.torch.draws import KeyHolder, drawing
from farflung.engines.torch.keys import keyed_randomness, op_seed
from farflung.engines.torch.program import lookup
from farflung.graph.ir import Op, OpKind, TensorSpec

CPU = torch.device("cpu")


def keyed(target: str, rng: int) -> object:
    spec = TensorSpec(dtype="float32", shape=(4, 6, 5))
    op = Op(name="x", kind=OpKind.NON_PARAMETRIC, target=target, outputs=(spec,), rng=rng)
    return drawing(op, lookup(target), CPU, KeyHolder(seed=5, step=2, micro_batch=1))


def test_operators_draw_what_the_context_draws() -> None:
    x = torch.randn(4, 6, 5)
    q = torch.randn(2, 2, 6, 4)
    with keyed_randomness(5).micro_batch(2, 1):
        expected = [
            F.dropout(x, 0.3),
            F.dropout2d(x[..., None], 0.5)[..., 0],
            torch.randn_like(x),
            torch.rand_like(x),
            torch.bernoulli(x.sigmoid()),
            F.scaled_dot_product_attention(q, q, q, dropout_p=0.4),
            torch.randn(3, 4),
        ]
    found = [
        keyed("aten.dropout.default", 0)(x, 0.3, True),
        keyed("aten.feature_dropout.default", 1)(x[..., None], 0.5, True)[..., 0],
        keyed("aten.randn_like.default", 2)(x),
        keyed("aten.rand_like.default", 3)(x),
        keyed("aten.bernoulli.default", 4)(x.sigmoid()),
        keyed("aten.scaled_dot_product_attention.default", 5)(q, q, q, None, 0.4),
        keyed("aten.randn.default", 6)([3, 4]),
    ]
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(a, b), number
    assert not torch.equal(expected[0] == 0, F.dropout(x, 0.3) == 0)


def test_calls_that_do_not_draw_are_not_counted() -> None:
    x, q = torch.randn(8), torch.randn(1, 1, 4, 4)
    with keyed_randomness(0).micro_batch(0, 0):
        F.dropout(x, 0.0)
        F.dropout(x, 0.5, training=False)
        F.scaled_dot_product_attention(q, q, q)
        torch.randn(3, generator=torch.Generator())
        first = F.dropout(x, 0.5)
    torch.manual_seed(op_seed(0, 0, 0, 0))
    assert torch.equal(first, F.dropout(x, 0.5))


def test_micro_batches_differ_and_the_generator_is_restored() -> None:
    keys = keyed_randomness(0)
    before = torch.get_rng_state()
    drawn = []
    for step, index in ((0, 0), (0, 1), (1, 0), (0, 0)):
        with keys.micro_batch(step, index):
            drawn.append(torch.randn(4))
    assert torch.equal(drawn[0], drawn[3])
    assert not any(torch.equal(drawn[0], other) for other in drawn[1:3])
    keyed("aten.scaled_dot_product_attention.default", 0)(*[torch.randn(1, 1, 2, 2)] * 3, None, 0.5)
    torch.set_rng_state(before)
    keyed("aten.scaled_dot_product_attention.default", 0)(*[torch.ones(1, 1, 2, 2)] * 3, None, 0.5)
    assert torch.equal(torch.get_rng_state(), before)
