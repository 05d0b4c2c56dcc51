"""The models that must be captured, in tiny sizes, and the operators that they need."""

from __future__ import annotations

from typing import Any

TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt", {"sequence": 16, "layers": 2, "width": 32, "heads": 2, "dropout": 0.1}),
    "gpt2": ("gpt2", {"sequence": 16, "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64}),
    "gpt2-lora": ("gpt2", {"sequence": 16, "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64, "lora_rank": 2}),
    "llama": (
        "llama",
        {
            "sequence": 16,
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 64,
        },
    ),
    "bert": (
        "bert",
        {
            "sequence": 16,
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "vocab_size": 64,
        },
    ),
    "albert": (
        "albert",
        {
            "sequence": 16,
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "embedding_size": 16,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "vocab_size": 64,
        },
    ),
    "resnet18": ("resnet18", {"size": 8}),
    "resnet50": ("resnet50", {"size": 32, "stem": "imagenet"}),
    "cnn": ("cnn", {"size": 16}),
    "moe": ("moe", {"sequence": 16, "width": 32}),
}

#: Every operator that the graphs of the zoo use, in all forms.
_TARGETS = """
    aten.__and__.Tensor aten.adaptive_avg_pool2d.default aten.add.Tensor aten.addmm.default aten.alias.default
    aten.arange.default aten.argmax.default aten.batch_norm.default aten.bernoulli.default aten.bitwise_not.default
    aten.bmm.default aten.cat.default aten.contiguous.default aten.conv2d.default aten.cos.default
    aten.cross_entropy_loss.default aten.cumsum.default aten.diff.default aten.dropout.default
    aten.embedding.default aten.eq.Tensor aten.expand.default aten.feature_dropout.default aten.flatten.using_ints
    aten.full.default aten.gather.default aten.ge.Scalar aten.gelu.default aten.group_norm.default
    aten.index.Tensor aten.index_add.default aten.layer_norm.default aten.le.Tensor aten.leaky_relu.default
    aten.linear.default aten.masked_fill.Scalar aten.max_pool2d.default aten.mean.dim aten.mul.Tensor
    aten.ne.Scalar aten.neg.default aten.new_ones.default aten.pad.default aten.permute.default
    aten.pow.Tensor_Scalar aten.relu.default aten.reshape.default aten.rsqrt.default
    aten.scaled_dot_product_attention.default aten.sigmoid.default aten.silu.default aten.sin.default
    aten.slice.Tensor aten.softmax.int aten.split.Tensor aten.sub.Tensor aten.sum.default aten.t.default
    aten.tanh.default aten.to.dtype aten.topk.default aten.transpose.int aten.unbind.int aten.unsqueeze.default
    aten.view.default aten.zeros_like.default farflung.batch_norm farflung.input
"""
TARGETS = frozenset(_TARGETS.split())
