"""The architectures of the page docs/architectures.md: families, classes, small configurations and batches.

Most entries take the sizes that the benchmark ``coverage`` gives to any configuration. The others need sizes that fit together,
and have a configuration of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks.training.coverage_models import of_transformers

__all__ = ["CATALOG", "Architecture"]

Batch = Mapping[str, Any]
_ROWS, _LENGTH, _LABELS = 2, 12, 3


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """``make`` builds the class ``model`` small; ``batch(step, micro_batch)`` gives its arguments by keyword."""

    family: str
    model: str
    make: Callable[[], nn.Module] = field(repr=False)
    batch: Callable[[int, int], Batch] = field(repr=False)


def _by_task(family: str, task: str, mapping: str, kinds: str) -> list[Architecture]:
    """The class of each model type of ``kinds`` for ``task``."""
    from transformers.models.auto import modeling_auto

    found = []
    for kind in kinds.split():
        names = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")[kind]
        name = names if isinstance(names, str) else names[0]
        draw = of_transformers(name, {"task": task, "model_type": kind, "layers": 2, "attention": "sdpa", "seed": 5})
        found.append(Architecture(family=family, model=name, make=draw.make, batch=draw.batch))
    return found


def _own(family: str, data: Callable[[torch.Generator], Batch], classes: str, **config: Any) -> list[Architecture]:
    """Each class of ``classes`` with the configuration ``config`` and batches of ``data``."""

    def batch(step: int, index: int) -> Batch:
        return data(torch.Generator().manual_seed(1000 * step + 10 * index))

    return [
        Architecture(family=family, model=name, make=lambda name=name: _build(name, config), batch=batch)  # type: ignore[misc]
        for name in classes.split()
    ]


def _build(name: str, config: Mapping[str, Any]) -> nn.Module:
    import transformers

    made = getattr(transformers, name)
    attention = "sdpa" if getattr(made, "_supports_sdpa", True) else "eager"
    torch.manual_seed(5)
    model: nn.Module = made._from_config(made.config_class(**config), attn_implementation=attention, dtype=torch.float32)
    return model.train()


def _ids(random: torch.Generator, *shape: int, high: int = 80) -> torch.Tensor:
    return torch.randint(5, high, shape or (_ROWS, _LENGTH), generator=random)


def _labels(random: torch.Generator) -> torch.Tensor:
    return torch.randint(0, _LABELS, (_ROWS,), generator=random)


def _pixels(random: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(_ROWS, *(shape or (3, 32, 32)), generator=random)


def _text(random: torch.Generator) -> Batch:
    return {"input_ids": _ids(random), "labels": _ids(random)}


def _image(random: torch.Generator) -> Batch:
    return {"pixel_values": _pixels(random), "labels": _labels(random)}


def _large_image(random: torch.Generator) -> Batch:
    return {"pixel_values": _pixels(random, 3, 64, 64), "labels": _labels(random)}


def _video(random: torch.Generator) -> Batch:
    return {"pixel_values": _pixels(random, 4, 3, 32, 32), "labels": _labels(random)}


def _wave(random: torch.Generator) -> Batch:
    return {"input_values": _pixels(random, 2000), "labels": _labels(random)}


def _caption(random: torch.Generator) -> Batch:
    return {**_text(random), "pixel_values": _pixels(random)}


def _pairs(random: torch.Generator) -> Batch:
    return {"input_ids": _ids(random), "pixel_values": _pixels(random), "return_loss": True}


def _image_in_text(tokens: int, **more: Any) -> Callable[[torch.Generator], Batch]:
    """Text with ``tokens`` places for an image."""

    def make(random: torch.Generator) -> Batch:
        ids = _ids(random, _ROWS, _LENGTH + tokens)
        ids[:, 1 : 1 + tokens] = _IMAGE
        found = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": _pixels(random)}
        return {**found, "labels": _ids(random, _ROWS, _LENGTH + tokens), **{name: torch.ones_like(ids) for name in more}}

    return make


_IMAGE = 98
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_WORDS = {**_SIZES, "vocab_size": 99, "max_position_embeddings": 64}
_GROUPED = {**_WORDS, "num_key_value_heads": 2}
_PICTURES = {**_SIZES, "image_size": 32, "patch_size": 8}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
_BOTH = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
_WAVES = {
    **_SIZES,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "layerdrop": 0.0,
    "num_labels": _LABELS,
    "vocab_size": 40,
    "mask_time_prob": 0.0,
    "apply_spec_augment": False,
    "num_feat_extract_layers": 3,
}

_CAUSAL = ("causal language modeling", "CAUSAL_LM")
_DECODERS = (
    "gpt2 llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi phi3 opt bloom falcon gpt_neo gpt_neox mpt stablelm starcoder2 "
    "olmo olmo2 olmo3 cohere cohere2 granite glm glm4 smollm3 persimmon helium exaone4 ernie4_5 biogpt xglm gpt_bigcode "
    "openai-gpt ctrl xlnet arcee apertus diffllama doge seed_oss bitnet nanochat"
)
_ENCODERS = (
    "bert roberta albert distilbert electra deberta deberta-v2 camembert xlm-roberta mpnet modernbert convbert fnet funnel "
    "nystromformer mobilebert squeezebert roformer rembert megatron-bert ernie eurobert"
)
_VISION = (
    "vit deit beit convnext convnextv2 resnet regnet mobilenet_v1 mobilenet_v2 mobilevit dinov2 segformer poolformer pvt pvt_v2 "
    "cvt bit focalnet vit_msn swiftformer siglip hiera ijepa"
)

#: All architectures, by family.
CATALOG: tuple[Architecture, ...] = (
    *_by_task("Decoder", *_CAUSAL, _DECODERS),
    *_own("Decoder", _text, "GPTJForCausalLM CodeGenForCausalLM", vocab_size=99, n_embd=32, n_layer=2, n_head=4, rotary_dim=4),
    *_own("Decoder", _text, "NemotronForCausalLM", **_GROUPED),
    *_own("Decoder", _text, "MinistralForCausalLM", **_GROUPED, head_dim=8),
    *_by_task("Encoder", "masked language modeling", "MASKED_LM", _ENCODERS),
    *_own("Encoder", _text, "EsmForMaskedLM", **_WORDS, pad_token_id=1, mask_token_id=4),
    *_by_task(
        "Encoder-decoder",
        "sequence to sequence",
        "SEQ_TO_SEQ_CAUSAL_LM",
        "bart mbart marian pegasus mt5 umt5 blenderbot blenderbot-small plbart mvp pegasus_x t5gemma",
    ),
    *_own(
        "Encoder-decoder",
        _text,
        "T5ForConditionalGeneration",
        vocab_size=99,
        d_model=32,
        num_layers=2,
        num_heads=4,
        d_kv=8,
        d_ff=64,
        decoder_start_token_id=0,
    ),
    *_own("Encoder-decoder", _text, "M2M100ForConditionalGeneration", **_BOTH, encoder_layerdrop=0.0, decoder_layerdrop=0.0),
    *_by_task("Vision", "image classification", "IMAGE_CLASSIFICATION", _VISION),
    *_own(
        "Vision",
        _image,
        "SwinForImageClassification Swinv2ForImageClassification",
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=4,
        num_labels=_LABELS,
    ),
    *_own("Vision", _large_image, "LevitForImageClassification", image_size=64, num_labels=_LABELS),
    *_own("Vision", _large_image, "MobileViTV2ForImageClassification", image_size=64, width_multiplier=0.25, num_labels=_LABELS),
    *_own("Vision", _video, "TimesformerForVideoClassification", **_PICTURES, num_frames=4, num_labels=_LABELS),
    *_own(
        "Vision",
        _video,
        "VivitForVideoClassification",
        **_SIZES,
        image_size=32,
        num_frames=4,
        tubelet_size=[2, 16, 16],
        num_labels=_LABELS,
    ),
    *_own(
        "Speech",
        _wave,
        "Wav2Vec2ForSequenceClassification HubertForSequenceClassification WavLMForSequenceClassification "
        "UniSpeechForSequenceClassification UniSpeechSatForSequenceClassification SEWForSequenceClassification "
        "Data2VecAudioForSequenceClassification Wav2Vec2ConformerForSequenceClassification",
        **_WAVES,
    ),
    *_own(
        "Speech",
        lambda random: {"input_features": _pixels(random, 16, 40), "labels": _ids(random)},
        "WhisperForConditionalGeneration",
        **_BOTH,
        num_mel_bins=16,
        max_source_positions=20,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    ),
    *_own(
        "Speech",
        lambda random: {"input_features": _pixels(random, 40, 16), "labels": _ids(random)},
        "Speech2TextForConditionalGeneration",
        **_BOTH,
        input_feat_per_channel=16,
        max_source_positions=64,
        max_target_positions=32,
        conv_channels=32,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
    ),
    *_own(
        "Speech",
        lambda random: {"input_values": _pixels(random, 32, 16), "labels": _labels(random)},
        "ASTForAudioClassification",
        **_SIZES,
        patch_size=4,
        frequency_stride=4,
        time_stride=4,
        max_length=32,
        num_mel_bins=16,
        num_labels=_LABELS,
    ),
    *_own("Image and text", _caption, "GitForCausalLM", **_WORDS, vision_config=_PICTURES),
    *_own(
        "Image and text",
        _caption,
        "BlipForConditionalGeneration",
        text_config={**_WORDS, "encoder_hidden_size": 32, "bos_token_id": 1},
        vision_config=_PICTURES,
        projection_dim=32,
        image_text_hidden_size=32,
    ),
    *_own(
        "Image and text",
        _image_in_text(4),
        "Blip2ForConditionalGeneration",
        text_config={**_WORDS, "model_type": "opt", "ffn_dim": 64, "word_embed_proj_dim": 32},
        vision_config=_PICTURES,
        qformer_config={**_SIZES, "encoder_hidden_size": 32, "vocab_size": 99},
        num_query_tokens=4,
        image_token_index=_IMAGE,
    ),
    *_own("Image and text", _pairs, "CLIPModel", text_config=_WORDS, vision_config=_PICTURES, projection_dim=16),
    *_own("Image and text", _pairs, "SiglipModel", text_config={**_WORDS, "projection_size": 32}, vision_config=_PICTURES),
    *_own(
        "Image and text",
        _image_in_text(16, token_type_ids=True),
        "PaliGemmaForConditionalGeneration",
        text_config={**_GROUPED, "model_type": "gemma", "head_dim": 8},
        vision_config={**_PICTURES, "model_type": "siglip_vision_model", "projection_dim": 32, "num_image_tokens": 16},
        image_token_index=_IMAGE,
        projection_dim=32,
        hidden_size=32,
    ),
    *_by_task(
        "Mixture of experts",
        *_CAUSAL,
        "mixtral qwen2_moe qwen3_moe olmoe deepseek_v3 granitemoe gpt_oss glm4_moe ernie4_5_moe minimax",
    ),
    *_own(
        "Mixture of experts",
        _text,
        "DeepseekV2ForCausalLM",
        **{**_WORDS, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8},
        qk_rope_head_dim=8,
        v_head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        n_shared_experts=1,
    ),
    *_own(
        "Mixture of experts",
        _text,
        "Lfm2MoeForCausalLM",
        **_GROUPED,
        layer_types=["conv", "full_attention"],
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        num_dense_layers=1,
    ),
    *_by_task("State space", *_CAUSAL, "mamba falcon_mamba rwkv lfm2 qwen3_next"),
    *_own(
        "State space",
        _text,
        "Mamba2ForCausalLM",
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=8,
        num_heads=8,
        head_dim=8,
        n_groups=2,
        chunk_size=8,
    ),
    *_own(
        "State space",
        _text,
        "JambaForCausalLM",
        **{**_GROUPED, "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
        num_experts=4,
        mamba_d_state=8,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    *_own("State space", _text, "BambaForCausalLM", **_GROUPED, **_MAMBA, attn_layer_indices=[1]),
    *_own("State space", _text, "FalconH1ForCausalLM", **_GROUPED, **_MAMBA, head_dim=8, mamba_d_ssm=64),
    *_own(
        "State space",
        _text,
        "GraniteMoeHybridForCausalLM",
        **_GROUPED,
        **_MAMBA,
        layer_types=["mamba", "attention"],
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=64,
    ),
    *_own(
        "State space",
        _text,
        "NemotronHForCausalLM",
        **{**_GROUPED, "num_hidden_layers": 3, "hybrid_override_pattern": "M*-", "mamba_num_heads": 8, "mamba_head_dim": 8},
        ssm_state_size=8,
        n_groups=1,
        chunk_size=8,
        head_dim=8,
    ),
    *_own(
        "State space",
        _text,
        "RecurrentGemmaForCausalLM",
        **{**_GROUPED, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8, "head_dim": 8},
    ),
)
