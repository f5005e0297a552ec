"""Networks of diffusers of `imports.py --diffusers`: for each its class, arguments that make it small, and what forward is given;
and published sizes."""

from __future__ import annotations

from typing import Any

import torch

HEADS = dict(num_attention_heads=2, attention_head_dim=16)
LATENTS = dict(in_channels=4, out_channels=4, **HEADS)
ROTARY = (4, 6, 6)
WORDS = dict(encoder_hidden_states=(6, 24))
UNET = dict(sample_size=8, in_channels=4, out_channels=4, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=24)
CROSS = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
Given = dict[str, Any]
DIFFUSERS: dict[str, tuple[str, Given, Given]] = {
    "DiT": (
        "DiTTransformer2DModel", LATENTS | dict(out_channels=8, num_layers=2, sample_size=8, num_embeds_ada_norm=200),
        dict(hidden_states=(4, 8, 8), timestep=("long",), class_labels=("long",)),
    ),
    "PixArt": (
        "PixArtTransformer2DModel",
        LATENTS | dict(num_layers=2, cross_attention_dim=32, sample_size=8, caption_channels=24, use_additional_conditions=False),
        dict(hidden_states=(4, 8, 8), timestep=("long",), **WORDS),
    ),
    "Stable Diffusion 3": (
        "SD3Transformer2DModel", LATENTS | dict(
            sample_size=8, num_layers=2, joint_attention_dim=24, caption_projection_dim=32, pooled_projection_dim=20,
            pos_embed_max_size=8, qk_norm="rms_norm",
        ), dict(hidden_states=(4, 8, 8), pooled_projections=(20,), timestep=(), **WORDS),
    ),
    "FLUX.1": (
        "FluxTransformer2DModel", HEADS | dict(
            in_channels=16, num_layers=1, num_single_layers=1, joint_attention_dim=24, pooled_projection_dim=20,
            guidance_embeds=True, axes_dims_rope=ROTARY,
        ), dict(
            hidden_states=(16, 16), pooled_projections=(20,), timestep=(), guidance=(), img_ids=("same", 16, 3),
            txt_ids=("same", 6, 3), **WORDS,
        ),
    ),
    "SANA": (
        "SanaTransformer2DModel", LATENTS | dict(
            num_layers=2, num_cross_attention_heads=2, cross_attention_head_dim=16, cross_attention_dim=32, caption_channels=24,
            sample_size=8,
        ), dict(hidden_states=(4, 8, 8), timestep=("long",), **WORDS),
    ),
    "AuraFlow": (
        "AuraFlowTransformer2DModel", LATENTS | dict(
            sample_size=8, num_mmdit_layers=1, num_single_dit_layers=1, joint_attention_dim=24, caption_projection_dim=32,
            pos_embed_max_size=16,
        ), dict(hidden_states=(4, 8, 8), timestep=(), **WORDS),
    ),
    "Qwen-Image": (
        "QwenImageTransformer2DModel", LATENTS | dict(in_channels=16, num_layers=2, joint_attention_dim=24, axes_dims_rope=ROTARY),
        dict(hidden_states=(16, 16), timestep=(), encoder_hidden_states_mask=("long", 6), img_shapes=[[(1, 4, 4)]] * 4, **WORDS),
    ),
    "Wan 2": (
        "WanTransformer3DModel", LATENTS | dict(text_dim=24, freq_dim=32, ffn_dim=64, num_layers=2, cross_attn_norm=True),
        dict(hidden_states=(4, 2, 8, 8), timestep=("long",), **WORDS),
    ),
    "CogVideoX": (
        "CogVideoXTransformer3DModel", LATENTS | dict(
            time_embed_dim=8, text_embed_dim=24, num_layers=2, sample_width=8, sample_height=8, sample_frames=9,
            max_text_seq_length=6,
        ), dict(hidden_states=(3, 4, 8, 8), timestep=("long",), **WORDS),
    ),
    "HunyuanVideo": (
        "HunyuanVideoTransformer3DModel", LATENTS | dict(
            num_layers=1, num_single_layers=1, num_refiner_layers=1, text_embed_dim=24, pooled_projection_dim=20,
            rope_axes_dim=ROTARY,
        ), dict(
            hidden_states=(4, 2, 8, 8), timestep=("long",), encoder_attention_mask=("long", 6), pooled_projections=(20,),
            guidance=(), **WORDS,
        ),
    ),
    "LTX-Video": (
        "LTXVideoTransformer3DModel", LATENTS | dict(cross_attention_dim=32, num_layers=2, caption_channels=24),
        dict(
            hidden_states=(32, 4), timestep=("long",), encoder_attention_mask=("long", 6), num_frames=2, height=4, width=4, **WORDS
        ),
    ),
    "UNet of Stable Diffusion 1.5": (
        "UNet2DConditionModel", UNET | dict(down_block_types=CROSS[0], up_block_types=CROSS[1], attention_head_dim=8),
        dict(sample=(4, 8, 8), timestep=("long",), **WORDS),
    ),
    "UNet of SDXL": (
        "UNet2DConditionModel", UNET | dict(
            down_block_types=CROSS[0][::-1], up_block_types=CROSS[1][::-1], attention_head_dim=(4, 8), use_linear_projection=True,
            addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=80,
            transformer_layers_per_block=(1, 2),
        ), dict(sample=(4, 8, 8), timestep=("long",), added_cond_kwargs=dict(text_embeds=(32,), time_ids=(6,)), **WORDS),
    ),
    "VAE": (
        "AutoencoderKL", dict(
            block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
            sample_size=16,
        ), dict(sample=(3, 16, 16)),
    ),
}
PUBLISHED: dict[str, tuple[str, Given, Given, int]] = {
    "DiT-XL/2": (
        "DiTTransformer2DModel", dict(out_channels=8),
        dict(hidden_states=(4, 32, 32), timestep=("long",), class_labels=("long",)), 256,
    ),
    "Stable Diffusion 3.5 large": (
        "SD3Transformer2DModel", dict(
            num_layers=38, num_attention_heads=38, caption_projection_dim=2432, pos_embed_max_size=192, qk_norm="rms_norm",
        ), dict(hidden_states=(16, 128, 128), encoder_hidden_states=(333, 4096), pooled_projections=(2048,), timestep=()), 64,
    ),
    "FLUX.1 dev": (
        "FluxTransformer2DModel", dict(guidance_embeds=True), dict(
            hidden_states=(4096, 64), encoder_hidden_states=(512, 4096), pooled_projections=(768,), timestep=(), guidance=(),
            img_ids=("same", 4096, 3), txt_ids=("same", 512, 3),
        ), 64,
    ),
    "SANA 1.6B": (
        "SanaTransformer2DModel", {}, dict(hidden_states=(32, 32, 32), encoder_hidden_states=(300, 2304), timestep=("long",)), 64
    ),
    "Qwen-Image": (
        "QwenImageTransformer2DModel", dict(out_channels=16), dict(
            hidden_states=(4096, 64), encoder_hidden_states=(512, 3584), timestep=(), encoder_hidden_states_mask=("long", 512),
            img_shapes=[[(1, 64, 64)]] * 64,
        ), 64,
    ),
    "Wan 2.1 14B": (
        "WanTransformer3DModel", {},
        dict(hidden_states=(16, 21, 60, 104), encoder_hidden_states=(512, 4096), timestep=("long",)), 64,
    ),
    "CogVideoX 5B": (
        "CogVideoXTransformer3DModel", dict(num_attention_heads=48, num_layers=42, use_rotary_positional_embeddings=False),
        dict(hidden_states=(13, 16, 60, 90), encoder_hidden_states=(226, 4096), timestep=("long",)), 64,
    ),
    "HunyuanVideo": (
        "HunyuanVideoTransformer3DModel", {}, dict(
            hidden_states=(16, 33, 68, 120), encoder_hidden_states=(256, 4096), timestep=("long",),
            encoder_attention_mask=("long", 256), pooled_projections=(768,), guidance=(),
        ), 64,
    ),
    "UNet of SDXL": (
        "UNet2DConditionModel", dict(
            sample_size=128, block_out_channels=(320, 640, 1280), cross_attention_dim=2048, attention_head_dim=(5, 10, 20),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), use_linear_projection=True,
            addition_embed_type="text_time", addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816,
            transformer_layers_per_block=(1, 2, 10),
        ), dict(
            sample=(4, 128, 128), timestep=("long",), encoder_hidden_states=(77, 2048),
            added_cond_kwargs=dict(text_embeds=(1280,), time_ids=(6,)),
        ), 64,
    ),
}


def diffusers_module(name: str, batch: int) -> tuple[Any, dict[str, Any]]:
    """A small network with random weights, none of which are zeros, and tensors for its forward."""
    import diffusers

    kind, options, given = DIFFUSERS[name]
    torch.manual_seed(0)
    module = getattr(diffusers, kind)(**options).train()
    for part in module.modules():
        if hasattr(part, "dropout_prob"):  # of labels, by chance
            part.dropout_prob = 0.0
    with torch.no_grad():
        for parameter in module.parameters():  # gates begin as zeros, behind which no gradient would be seen
            parameter += 0.02 * torch.randn_like(parameter)
    return module, {key: _example(value, batch) for key, value in given.items()}


def published(name: str) -> tuple[Any, dict[str, Any]]:
    """A network of its published size in bfloat16, without weights, and examples for its forward."""
    import diffusers

    from taskflow.models.pytorch import on_meta

    kind, options, given, batch = PUBLISHED[name]
    with on_meta():
        module = getattr(diffusers, kind)(**options).bfloat16().train()
    for part in module.modules():
        if hasattr(part, "dropout_prob"):
            part.dropout_prob = 0.0
    return module, {key: _example(value, batch, torch.bfloat16) for key, value in given.items()}


def _example(value: Any, batch: int, dtype: torch.dtype = torch.float32) -> Any:
    """A tensor (batch, *sizes): floats, or of the type that stands before the sizes; "same": without samples. Else the value."""
    if isinstance(value, dict):
        return {key: _example(part, batch, dtype) for key, part in value.items()}
    if not isinstance(value, tuple):
        return value
    kind, sizes = (value[0], value[1:]) if value and isinstance(value[0], str) else ("", value)
    if kind == "same":
        return torch.zeros(sizes)
    return torch.zeros(batch, *sizes, dtype=torch.long if kind == "long" else dtype)
