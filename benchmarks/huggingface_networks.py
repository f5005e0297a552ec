"""Hugging Face's networks of `imports.py`: for each a configuration that makes it small; and sizes that people train."""

from __future__ import annotations

from typing import Any

WIDTH = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
WORDS = dict(vocab_size=211, bos_token_id=1, eos_token_id=2, pad_token_id=0)
DECODER = WIDTH | WORDS | dict(num_key_value_heads=2, max_position_embeddings=128)
BOTH = dict(
    d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
    decoder_ffn_dim=128, max_position_embeddings=64, **WORDS,
)
SOUNDS = dict(
    layerdrop=0.0, apply_spec_augment=False, conv_dim=[32] * 3, conv_stride=[5, 2, 2], conv_kernel=[10, 3, 2],
    num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, **WIDTH,
)
HYBRID = DECODER | dict(
    head_dim=16, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
    layer_types=["linear_attention", "full_attention"],
)
GEMMA = DECODER | dict(head_dim=16, layer_types=["sliding_attention", "full_attention"])
WORDS_OF_IMAGES = dict(image_token_id=5, video_token_id=6, vision_start_token_id=7, vision_end_token_id=8)
TEXT_OF_IMAGES = DECODER | dict(head_dim=16, rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 3, 3]))
PATCHES = dict(  # images of 512 x 512 are 8 x 8 patches
    hidden_size=64, depth=2, num_heads=4, patch_size=64, temporal_patch_size=1, in_channels=1, spatial_merge_size=2,
)
LATENT = DECODER | dict(  # of keys and values, of which indices choose, and experts
    q_lora_rank=32, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, num_key_value_heads=4,
    n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=32, n_group=1, topk_group=1,
    first_k_dense_replace=1,
)
CHOSEN = dict(index_n_heads=16, index_head_dim=16, index_topk=8)
STAGES = dict(embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], out_features=["stage2", "stage3", "stage4"])
DETECTOR = dict(d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64, num_queries=10, image_size=64)
ENCODER = dict(encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64)
REAL_TIME = DETECTOR | ENCODER | dict(
    backbone_config=dict(model_type="rt_detr_resnet", layer_type="basic", **STAGES), encoder_hidden_dim=32,
    encoder_in_channels=[32, 64, 64], decoder_in_channels=[32, 32, 32], num_denoising=0, anchor_image_size=None,
)
TOWER = WIDTH | dict(image_size=32, patch_size=8)
PIXTRAL = dict(model_type="pixtral", head_dim=16, **TOWER)
CONFIGS: dict[str, dict[str, Any]] = {
    "GPT-2": dict(model_type="gpt2", n_layer=2, n_head=4, n_embd=64, n_positions=64, **WORDS),
    "Llama": dict(model_type="llama", **DECODER),
    "Llama, tied, rope of Llama 3": dict(
        model_type="llama", tie_word_embeddings=True, **DECODER,
        rope_parameters=dict(
            rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "Mistral, window 8": dict(model_type="mistral", sliding_window=8, **DECODER),
    "Mixtral": dict(model_type="mixtral", num_local_experts=4, **DECODER),
    "Qwen2": dict(model_type="qwen2", **DECODER),
    "Qwen3": dict(model_type="qwen3", head_dim=16, **DECODER),
    "Qwen3-MoE": dict(
        model_type="qwen3_moe", head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, **DECODER
    ),
    "Gemma 2": dict(model_type="gemma2", head_dim=16, **DECODER),
    "GPT-NeoX": dict(model_type="gpt_neox", **WIDTH, **WORDS, max_position_embeddings=64),
    "OPT": dict(
        model_type="opt", hidden_size=64, ffn_dim=128, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=64, **WORDS
    ),
    "BERT": dict(model_type="bert", architectures=["BertForMaskedLM"], max_position_embeddings=64, **WIDTH, **WORDS),
    "ViT": dict(model_type="vit", image_size=32, patch_size=8, **WIDTH),
    "T5": dict(model_type="t5", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0, **WORDS),
    "T5 1.1 (gated GELU)": dict(
        model_type="t5", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
        tie_word_embeddings=False, decoder_start_token_id=0, **WORDS,
    ),
    "RoBERTa": dict(model_type="roberta", architectures=["RobertaForMaskedLM"], max_position_embeddings=64, **WIDTH, **WORDS),
    "Phi-3": dict(model_type="phi3", **DECODER),
    "BLOOM": dict(model_type="bloom", hidden_size=64, n_layer=2, n_head=4, **WORDS),
    "DistilBERT": dict(
        model_type="distilbert", architectures=["DistilBertForMaskedLM"], dim=64, hidden_dim=128, n_layers=2, n_heads=4,
        max_position_embeddings=64, vocab_size=211, pad_token_id=0,
    ),
    "ALBERT": dict(
        model_type="albert", architectures=["AlbertForMaskedLM"], embedding_size=32, max_position_embeddings=64, **WIDTH, **WORDS
    ),
    "ELECTRA": dict(
        model_type="electra", architectures=["ElectraForMaskedLM"], embedding_size=32, max_position_embeddings=64, **WIDTH, **WORDS
    ),
    "DeBERTa v2": dict(
        model_type="deberta-v2", architectures=["DebertaV2ForMaskedLM"], max_position_embeddings=64, **WIDTH, **WORDS
    ),
    "ModernBERT": dict(
        model_type="modernbert", architectures=["ModernBertForMaskedLM"], max_position_embeddings=64, global_attn_every_n_layers=2,
        local_attention=8, **WIDTH, **WORDS,
    ),
    "XLNet": dict(model_type="xlnet", d_model=64, n_layer=2, n_head=4, d_inner=128, vocab_size=211),
    "Falcon": dict(
        model_type="falcon", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=211, bos_token_id=1,
        eos_token_id=2,
    ),
    "GPT-J": dict(model_type="gptj", n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=64, **WORDS),
    "GPT-Neo, window 8": dict(
        model_type="gpt_neo", hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8,
        max_position_embeddings=64, intermediate_size=128, **WORDS,
    ),
    "MPT": dict(model_type="mpt", d_model=64, n_heads=4, n_layers=2, max_seq_len=64, vocab_size=211),
    "Phi": dict(model_type="phi", **DECODER),
    "StableLM": dict(model_type="stablelm", **DECODER),
    "Gemma": dict(model_type="gemma", head_dim=16, **DECODER),
    "Gemma 3, window 8": dict(model_type="gemma3_text", head_dim=16, sliding_window=8, **DECODER),
    "OLMo 2": dict(model_type="olmo2", **DECODER),
    "OLMoE": dict(model_type="olmoe", num_experts=4, num_experts_per_tok=2, **DECODER),
    "Cohere": dict(model_type="cohere", **DECODER),
    "StarCoder 2": dict(model_type="starcoder2", **DECODER),
    "Granite": dict(model_type="granite", **DECODER),
    "SmolLM 3": dict(model_type="smollm3", **DECODER),
    "GLM 4": dict(model_type="glm4", head_dim=16, **DECODER),
    "GPT-OSS": dict(
        model_type="gpt_oss", head_dim=16, sliding_window=8, num_local_experts=4, num_experts_per_tok=2, **DECODER
    ),
    "Llama 4, chunks of 8": dict(
        model_type="llama4_text", head_dim=16, num_local_experts=4, num_experts_per_tok=1, intermediate_size_mlp=96,
        attention_chunk_size=8, floor_scale=4, no_rope_layers=[1, 0], **DECODER,
    ),
    "DeepSeek V2": dict(
        model_type="deepseek_v2", q_lora_rank=None, kv_lora_rank=16, qk_rope_head_dim=8, head_dim=8, qk_nope_head_dim=16,
        v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2, topk_method="group_limited_greedy", n_group=2, topk_group=1,
        moe_intermediate_size=32, first_k_dense_replace=1, n_shared_experts=1, **(DECODER | dict(num_key_value_heads=4)),
    ),
    "DeepSeek V3": dict(
        model_type="deepseek_v3", q_lora_rank=32, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16,
        n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=32, first_k_dense_replace=1,
        n_shared_experts=1, **(DECODER | dict(num_key_value_heads=4)),
    ),
    "ESM": dict(
        model_type="esm", architectures=["EsmForMaskedLM"], vocab_size=211, pad_token_id=1, mask_token_id=32,
        max_position_embeddings=64, position_embedding_type="rotary", **WIDTH,
    ),
    "Mamba 2": dict(
        model_type="mamba2", hidden_size=64, num_hidden_layers=2, state_size=16, num_heads=8, head_dim=16, n_groups=1, chunk_size=8,
        **WORDS,
    ),
    "BART": dict(model_type="bart", architectures=["BartForConditionalGeneration"], decoder_start_token_id=2, **BOTH),
    "Pegasus": dict(model_type="pegasus", architectures=["PegasusForConditionalGeneration"], decoder_start_token_id=0, **BOTH),
    "DeiT": dict(model_type="deit", image_size=32, patch_size=8, **WIDTH),
    "BEiT": dict(model_type="beit", image_size=32, patch_size=8, **WIDTH),
    "DINOv2": dict(
        model_type="dinov2", architectures=["Dinov2ForImageClassification"], image_size=32, patch_size=8, hidden_size=64,
        num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2,
    ),
    "CLIP, images": dict(
        model_type="clip_vision_model", architectures=["CLIPVisionModelWithProjection"], image_size=32, patch_size=8,
        projection_dim=32, **WIDTH,
    ),
    "Swin": dict(
        model_type="swin", image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4
    ),
    "SegFormer": dict(
        model_type="segformer", architectures=["SegformerForImageClassification"], image_size=32, hidden_sizes=[8, 16, 32, 64],
        depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 4, 4],
    ),
    "ConvNeXt": dict(model_type="convnext", image_size=32, hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1]),
    "ResNet": dict(
        model_type="resnet", image_size=32, embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1]
    ),
    "RegNet": dict(
        model_type="regnet", image_size=32, embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], groups_width=8
    ),
    "GLM": dict(model_type="glm", head_dim=16, **DECODER),
    "OLMo": dict(model_type="olmo", **DECODER),
    "OLMo 3, window 8": dict(model_type="olmo3", sliding_window=8, **DECODER),
    "Command R7B, window 8": dict(model_type="cohere2", sliding_window=8, **DECODER),
    "Nemotron": dict(model_type="nemotron", **DECODER),
    "EXAONE 4, window 8": dict(model_type="exaone4", sliding_window=8, **DECODER),
    "Seed-OSS": dict(model_type="seed_oss", head_dim=16, residual_dropout=0.0, **DECODER),
    "Hunyuan": dict(model_type="hunyuan_v1_dense", head_dim=16, **DECODER),
    "ERNIE 4.5": dict(model_type="ernie4_5", head_dim=16, **DECODER),
    "Helium": dict(model_type="helium", head_dim=16, **DECODER),
    "LFM2": dict(model_type="lfm2", layer_types=["conv", "full_attention"], **DECODER),
    "Persimmon": dict(model_type="persimmon", **DECODER),
    "CodeGen": dict(model_type="codegen", n_embd=64, n_layer=2, n_head=4, rotary_dim=8, n_positions=64, **WORDS),
    "XGLM": dict(
        model_type="xglm", d_model=64, ffn_dim=128, num_layers=2, attention_heads=4, max_position_embeddings=64, **WORDS
    ),
    "ModernBERT, decoder": dict(model_type="modernbert-decoder", **DECODER),
    "GraniteMoE": dict(model_type="granitemoe", num_local_experts=4, num_experts_per_tok=2, **DECODER),
    "GLM 4.5": dict(
        model_type="glm4_moe", head_dim=16, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        first_k_dense_replace=1, n_group=1, topk_group=1, **DECODER,
    ),
    "MiniMax": dict(model_type="minimax", num_local_experts=4, num_experts_per_tok=2, **DECODER),
    "Bamba": dict(
        model_type="bamba", mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1, mamba_chunk_size=8,
        attn_layer_indices=[1], **DECODER,
    ),
    "MobileBERT": dict(
        model_type="mobilebert", architectures=["MobileBertForMaskedLM"], embedding_size=32, true_hidden_size=32,
        intra_bottleneck_size=32, max_position_embeddings=64, **WIDTH, **WORDS,
    ),
    "ConvBERT": dict(
        model_type="convbert", architectures=["ConvBertForMaskedLM"], embedding_size=64, max_position_embeddings=64, **WIDTH,
        **WORDS,
    ),
    "RoFormer": dict(
        model_type="roformer", architectures=["RoFormerForMaskedLM"], embedding_size=64, max_position_embeddings=64, **WIDTH,
        **WORDS,
    ),
    "Funnel": dict(
        model_type="funnel", architectures=["FunnelForMaskedLM"], d_model=64, d_inner=128, n_head=4, d_head=16, block_sizes=[1, 1],
        vocab_size=211,
    ),
    "mBART": dict(model_type="mbart", architectures=["MBartForConditionalGeneration"], **BOTH),
    "Marian": dict(model_type="marian", architectures=["MarianMTModel"], decoder_start_token_id=0, **BOTH),
    "Whisper": dict(
        model_type="whisper", architectures=["WhisperForConditionalGeneration"], num_mel_bins=16, max_source_positions=32,
        max_target_positions=32, decoder_start_token_id=0, **{key: BOTH[key] for key in BOTH if key != "max_position_embeddings"},
    ),
    "Wav2Vec 2": dict(model_type="wav2vec2", architectures=["Wav2Vec2ForSequenceClassification"], **SOUNDS),
    "HuBERT": dict(model_type="hubert", architectures=["HubertForSequenceClassification"], **SOUNDS),
    "DINOv2, registers": dict(
        model_type="dinov2_with_registers", architectures=["Dinov2WithRegistersForImageClassification"], image_size=32,
        patch_size=8, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2,
    ),
    "SAM, images": dict(
        model_type="sam_vision_model", architectures=["SamVisionModel"], output_channels=16, window_size=2, global_attn_indexes=[1],
        mlp_dim=64, image_size=32, patch_size=8, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
    ),
    "BLIP, images": dict(model_type="blip_vision_model", architectures=["BlipVisionModel"], image_size=32, patch_size=8, **WIDTH),
    "DPT": dict(
        model_type="dpt", architectures=["DPTForSemanticSegmentation"], backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 16, 32, 64], fusion_hidden_size=16, image_size=64, patch_size=16, **WIDTH | dict(num_hidden_layers=4),
    ),
    "Hiera": dict(
        model_type="hiera", architectures=["HieraForImageClassification"], image_size=[32, 32], patch_stride=[2, 2], embed_dim=16,
        num_heads=[1, 2], depths=[1, 1], embed_dim_multiplier=2.0, num_query_pool=1, masked_unit_size=[4, 4],
    ),
    "Qwen3-Next": dict(
        model_type="qwen3_next", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=32, **HYBRID,
    ),
    "Qwen3.5": dict(model_type="qwen3_5_text", **HYBRID),
    "Qwen3.5-MoE": dict(
        model_type="qwen3_5_moe_text", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=32, **HYBRID,
    ),
    "OLMo hybrid": dict(model_type="olmo_hybrid", **HYBRID | dict(linear_num_key_heads=4)),
    "Kimi Linear": dict(
        model_type="kimi_linear", linear_num_heads=4, linear_head_dim=8, num_experts=4, num_experts_per_token=2,
        linear_attn_config=dict(kda_layers=[1], full_attn_layers=[2], num_heads=4, head_dim=8, short_conv_kernel_size=4),
        moe_intermediate_size=32, num_shared_experts=1, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
        n_group=1, topk_group=1, head_dim=16, **(DECODER | dict(num_key_value_heads=4)),
    ),
    "Zamba 2": dict(
        model_type="zamba2", mamba_d_state=16, mamba_headdim=16, n_mamba_heads=8, mamba_ngroups=1, chunk_size=8,
        layers_block_type=["mamba", "hybrid"], adapter_rank=8, **(DECODER | dict(num_key_value_heads=4)),
    ),
    "Granite, hybrid": dict(
        model_type="granitemoehybrid", mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1, mamba_chunk_size=8,
        num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=32, layer_types=["mamba", "attention"], **DECODER,
    ),
    "Nemotron-H": dict(
        model_type="nemotron_h", ssm_state_size=16, mamba_num_heads=8, mamba_head_dim=16, n_groups=1, chunk_size=8, head_dim=16,
        layers_block_type=["mamba", "attention", "mlp"], **{k: v for k, v in DECODER.items() if k != "num_hidden_layers"},
    ),
    "Falcon-H1": dict(
        model_type="falcon_h1", mamba_d_ssm=128, mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1,
        mamba_chunk_size=8, head_dim=16, **DECODER,
    ),
    "Gemma 3n": dict(
        model_type="gemma3n_text", head_dim=16, vocab_size_per_layer_input=211, hidden_size_per_layer_input=16, laurel_rank=8,
        num_kv_shared_layers=0, altup_num_inputs=2, activation_sparsity_pattern=[0.95, 0.0],
        layer_types=["sliding_attention", "full_attention"], **DECODER,
    ),
    "Gemma 4": dict(
        model_type="gemma4_text", head_dim=16, global_head_dim=16, vocab_size_per_layer_input=211, hidden_size_per_layer_input=16,
        num_kv_shared_layers=0, layer_types=["sliding_attention", "full_attention"], **DECODER,
    ),
    "Apertus": dict(model_type="apertus", **DECODER),
    "Arcee": dict(model_type="arcee", **DECODER),
    "Ministral, window 8": dict(model_type="ministral", head_dim=16, sliding_window=8, **DECODER),
    "NanoChat": dict(model_type="nanochat", **DECODER),
    "VaultGemma": dict(model_type="vaultgemma", head_dim=16, **DECODER),
    "BitNet": dict(model_type="bitnet", **DECODER),
    "DiffLlama": dict(model_type="diffllama", **DECODER),
    "ERNIE 4.5, experts": dict(
        model_type="ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=32, moe_num_shared_experts=1,
        moe_layer_start_index=1, **DECODER,
    ),
    "Hunyuan, experts": dict(model_type="hunyuan_v1_moe", head_dim=16, num_experts=4, moe_topk=2, **DECODER),
    "dots.llm1": dict(
        model_type="dots1", n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=32, n_group=1,
        topk_group=1, first_k_dense_replace=1, **DECODER,
    ),
    "FlexOlmo": dict(model_type="flex_olmo", num_experts=4, num_experts_per_tok=2, **DECODER),
    "LFM2, experts": dict(
        model_type="lfm2_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, num_dense_layers=1,
        layer_types=["conv", "full_attention"], **DECODER,
    ),
    "Jamba": dict(
        model_type="jamba", mamba_d_state=8, mamba_dt_rank=8, num_experts=4, num_experts_per_tok=2, attn_layer_period=2,
        attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, **DECODER,
    ),
    "MiniMax M2": dict(
        model_type="minimax_m2", head_dim=16, rotary_dim=8, num_local_experts=4, num_experts_per_tok=2, **DECODER
    ),
    "Qwen2-MoE": dict(
        model_type="qwen2_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=32, **DECODER,
    ),
    "GPT-BigCode": dict(model_type="gpt_bigcode", n_embd=64, n_layer=2, n_head=4, n_positions=64, **WORDS),
    "BioGPT": dict(model_type="biogpt", max_position_embeddings=64, **WIDTH, **WORDS),
    "BlenderBot": dict(model_type="blenderbot", decoder_start_token_id=1, **BOTH),
    "ProphetNet": dict(
        model_type="prophetnet", hidden_size=64, encoder_ffn_dim=128, decoder_ffn_dim=128, num_encoder_layers=2,
        num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4, max_position_embeddings=64,
        decoder_start_token_id=0, **WORDS,
    ),
    "M2M-100 (NLLB)": dict(model_type="m2m_100", decoder_start_token_id=2, **BOTH),
    "T5Gemma": dict(
        model_type="t5gemma", encoder=GEMMA, decoder=dict(cross_attention_hidden_size=64, **GEMMA), vocab_size=211,
    ),
    "UMT5": dict(model_type="umt5", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0, **WORDS),
    "LongT5": dict(
        model_type="longt5", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, local_radius=7, decoder_start_token_id=0,
        **WORDS,
    ),
    "DeBERTa": dict(
        model_type="deberta", architectures=["DebertaForMaskedLM"], max_position_embeddings=64, relative_attention=True,
        pos_att_type=["c2p", "p2c"], **WIDTH, **WORDS,
    ),
    "DeBERTa v3": dict(
        model_type="deberta-v2", architectures=["DebertaV2ForMaskedLM"], max_position_embeddings=64, relative_attention=True,
        pos_att_type=["p2c", "c2p"], position_buckets=16, norm_rel_ebd="layer_norm", share_att_key=True,
        position_biased_input=False, **WIDTH, **WORDS,
    ),
    "Big Bird": dict(
        model_type="big_bird", architectures=["BigBirdForMaskedLM"], attention_type="original_full", max_position_embeddings=64,
        **WIDTH, **WORDS,
    ),
    "Nystromformer": dict(
        model_type="nystromformer", architectures=["NystromformerForMaskedLM"], num_landmarks=8, segment_means_seq_len=32,
        max_position_embeddings=64, **WIDTH, **WORDS,
    ),
    "MPNet": dict(model_type="mpnet", architectures=["MPNetForMaskedLM"], max_position_embeddings=64, **WIDTH, **WORDS),
    "Mellum": dict(
        model_type="mellum", head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, **DECODER
    ),
    "GLM 4.7 Flash": dict(model_type="glm4_moe_lite", **LATENT),
    "GLM 5": dict(model_type="glm_moe_dsa", **CHOSEN, **LATENT),
    "DeepSeek V3.2": dict(model_type="deepseek_v32", **CHOSEN, **LATENT),
    "DeepSeek V4": dict(
        model_type="deepseek_v4", head_dim=16, qk_rope_head_dim=8, q_lora_rank=32, o_lora_rank=16, o_groups=2, n_routed_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=32, sliding_window=8, hc_mult=2, **CHOSEN,
        **DECODER | dict(num_key_value_heads=1),
    ),
    "HY 4": dict(model_type="hy_v4", **CHOSEN, **LATENT),
    "MiniMax M3": dict(
        model_type="minimax_m3_vl_text", head_dim=16, num_local_experts=4, num_experts_per_tok=2, dense_intermediate_size=64,
        shared_intermediate_size=32, rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5), **DECODER
    ),
    "Dory": dict(
        model_type="dory", head_dim=16, sliding_window=8, layer_types=["sliding_attention", "mlp", "full_attention", "mlp"],
        n_input_layers=2, n_recurrent_layers=2, n_output_layers=0, n_recurrent_loops=2, **DECODER | dict(num_hidden_layers=4)
    ),
    "GPT-NeoX, Japanese": dict(
        model_type="gpt_neox_japanese", hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_multiple_size=2,
        max_position_embeddings=64, **WORDS,
    ),
    "LiLT": dict(
        model_type="lilt", architectures=["LiltForSequenceClassification"], max_position_embeddings=64, **WORDS,
        **WIDTH | dict(hidden_size=96),
    ),
    "UniSpeech": dict(model_type="unispeech", architectures=["UniSpeechForSequenceClassification"], **SOUNDS),
    "ImageGPT": dict(
        model_type="imagegpt", architectures=["ImageGPTForImageClassification"], n_embd=64, n_layer=2, n_head=4, n_positions=32,
        vocab_size=211,
    ),
    "EuroBERT": dict(model_type="eurobert", architectures=["EuroBertForMaskedLM"], **DECODER),
    "CvT": dict(
        model_type="cvt", embed_dim=[16, 32, 64], num_heads=[1, 2, 4], depth=[1, 2, 3], mlp_ratio=[2.0] * 3,
        drop_path_rate=[0.0] * 3, image_size=32,
    ),
    "DINOv3, ConvNeXt": dict(
        model_type="dinov3_convnext", architectures=["DINOv3ConvNextModel"], hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1],
        image_size=32,
    ),
    "Swin V2": dict(
        model_type="swinv2", architectures=["Swinv2ForImageClassification"], image_size=32, patch_size=2, embed_dim=16,
        depths=[1, 1], num_heads=[2, 4], window_size=4,
    ),
    "PVT v2": dict(
        model_type="pvt_v2", architectures=["PvtV2ForImageClassification"], image_size=32, hidden_sizes=[8, 16, 32, 64],
        depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 4, 4],
    ),
    "FocalNet": dict(
        model_type="focalnet", architectures=["FocalNetForImageClassification"], image_size=32, embed_dim=16, depths=[1, 1],
        focal_levels=[2, 2], focal_windows=[3, 3],
    ),
    "PVT": dict(
        model_type="pvt", image_size=32, hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 4, 4]
    ),
    "Llama 4, images": dict(
        model_type="llama4", architectures=["Llama4ForConditionalGeneration"], image_token_index=5,
        text_config=DECODER | dict(
            intermediate_size_mlp=128, head_dim=16, num_local_experts=4, attention_chunk_size=8, moe_layers=[1],
        ),
        vision_config=dict(
            hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8,
            vision_output_dim=64, projector_input_dim=64, projector_output_dim=64,
        ),
    ),
    "Qwen2-VL, images": dict(
        model_type="qwen2_vl", architectures=["Qwen2VLForConditionalGeneration"], text_config=TEXT_OF_IMAGES,
        vision_config={k: v for k, v in PATCHES.items() if k != "hidden_size"} | dict(embed_dim=64, hidden_size=64, mlp_ratio=2),
        **WORDS_OF_IMAGES,
    ),
    "Qwen2.5-VL, images": dict(
        model_type="qwen2_5_vl", architectures=["Qwen2_5_VLForConditionalGeneration"], text_config=TEXT_OF_IMAGES,
        vision_config=PATCHES | dict(intermediate_size=128, out_hidden_size=64, window_size=256, fullatt_block_indexes=[1]),
        **WORDS_OF_IMAGES,
    ),
    "Qwen3-VL, images": dict(
        model_type="qwen3_vl", architectures=["Qwen3VLForConditionalGeneration"], text_config=TEXT_OF_IMAGES,
        vision_config=PATCHES | dict(
            intermediate_size=128, out_hidden_size=64, num_position_embeddings=16, deepstack_visual_indexes=[0],
        ), **WORDS_OF_IMAGES,
    ),
    "Qwen3-VL-MoE, images": dict(
        model_type="qwen3_vl_moe", architectures=["Qwen3VLMoeForConditionalGeneration"],
        text_config=TEXT_OF_IMAGES | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
        vision_config=PATCHES | dict(
            intermediate_size=128, out_hidden_size=64, num_position_embeddings=16, deepstack_visual_indexes=[0],
        ), **WORDS_OF_IMAGES,
    ),
    "Qwen3.5, images": dict(
        model_type="qwen3_5", architectures=["Qwen3_5ForConditionalGeneration"], text_config=HYBRID | dict(
            rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 0], partial_rotary_factor=0.25),
        ),
        vision_config=PATCHES | dict(intermediate_size=128, out_hidden_size=64, num_position_embeddings=16), **WORDS_OF_IMAGES,
    ),
    "ViT MAE": dict(
        model_type="vit_mae", architectures=["ViTMAEForPreTraining"], image_size=32, patch_size=8, decoder_hidden_size=32,
        decoder_num_hidden_layers=1, decoder_num_attention_heads=4, decoder_intermediate_size=64, **WIDTH,
    ),
    "RT-DETR": dict(model_type="rt_detr", architectures=["RTDetrForObjectDetection"], **REAL_TIME),
    "RT-DETR v2": dict(model_type="rt_detr_v2", architectures=["RTDetrV2ForObjectDetection"], **REAL_TIME),
    "Deformable DETR": dict(
        model_type="deformable_detr", architectures=["DeformableDetrForObjectDetection"], dropout=0.0,
        backbone_config=dict(model_type="resnet", **STAGES), **DETECTOR, **ENCODER,
    ),
    "GLM-4V, images": dict(
        model_type="glm4v", architectures=["Glm4vForConditionalGeneration"], text_config=TEXT_OF_IMAGES, image_token_id=5,
        video_token_id=6, image_start_token_id=7, image_end_token_id=8,
        vision_config=PATCHES | dict(intermediate_size=128, out_hidden_size=64, image_size=512),
    ),
    "Longformer": dict(
        model_type="longformer", architectures=["LongformerForMaskedLM"], attention_window=[8, 8], max_position_embeddings=64,
        **WIDTH, **WORDS,
    ),
    "LED": dict(
        model_type="led", architectures=["LEDForConditionalGeneration"], attention_window=[8, 8],
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64, **{key: value for key, value in BOTH.items() if key != "max_position_embeddings"},
    ),
    "Grounding DINO": dict(
        model_type="grounding-dino", architectures=["GroundingDinoForObjectDetection"], max_text_len=32,
        text_config=dict(model_type="bert", max_position_embeddings=64, **WIDTH, **WORDS), backbone_config=dict(
            model_type="swin", image_size=64, patch_size=2, embed_dim=8, depths=[1] * 4, num_heads=[1, 1, 2, 2], window_size=4,
            out_features=["stage2", "stage3", "stage4"],
        ), **{key: value for key, value in (DETECTOR | ENCODER).items() if key != "image_size"},
    ),
    "ZAYA": dict(model_type="zaya", num_experts=4, moe_intermediate_size=32, router_hidden_size=16, head_dim=16, **DECODER),
    "Sarvam (experts)": dict(
        model_type="sarvam_moe", n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16, **DECODER
    ),
    "A.X K2": dict(model_type="axk2", gated_norm_rank=8, head_dim=8, **CHOSEN, **LATENT),
    "Mistral Large 4": dict(
        model_type="mistral_large4_text", architectures=["MistralLarge4TextModel"], head_dim=8, **CHOSEN,
        **{key: value for key, value in LATENT.items() if key != "q_lora_rank"},
    ),
    "UltraBERT": dict(
        model_type="ultrabert", architectures=["UltrabertForMaskedLM"], sliding_window=8, prediction_head_size=32, **DECODER
    ),
    "PLBART": dict(model_type="plbart", architectures=["PLBartForConditionalGeneration"], **BOTH),
    "Blenderbot": dict(model_type="blenderbot", architectures=["BlenderbotForConditionalGeneration"], **BOTH),
    "CamemBERT": dict(
        model_type="camembert", architectures=["CamembertForMaskedLM"], max_position_embeddings=64, **WIDTH, **WORDS
    ),
    "DPR": dict(model_type="dpr", architectures=["DPRQuestionEncoder"], **WIDTH, **WORDS),
    "SqueezeBERT": dict(
        model_type="squeezebert", architectures=["SqueezeBertForMaskedLM"], embedding_size=64, max_position_embeddings=64,
        q_groups=2, k_groups=2, v_groups=2, post_attention_groups=1, intermediate_groups=2, output_groups=2, **WIDTH, **WORDS,
    ),
    "LayoutLM": dict(
        model_type="layoutlm", architectures=["LayoutLMForMaskedLM"], max_position_embeddings=64, max_2d_position_embeddings=64,
        **WIDTH, **WORDS,
    ),
    "UniSpeech-SAT": dict(model_type="unispeech-sat", architectures=["UniSpeechSatForSequenceClassification"], **SOUNDS),
    "Wav2Vec 2, Conformer": dict(
        model_type="wav2vec2-conformer", architectures=["Wav2Vec2ConformerForSequenceClassification"], **SOUNDS
    ),
    "Wav2Vec 2, BERT": dict(
        model_type="wav2vec2-bert", architectures=["Wav2Vec2BertForSequenceClassification"], feature_projection_input_dim=32,
        layerdrop=0.0, apply_spec_augment=False, use_intermediate_ffn_before_adapter=False, **WIDTH,
    ),
    "Data2Vec, sounds": dict(
        model_type="data2vec-audio", architectures=["Data2VecAudioForSequenceClassification"], conv_pos_kernel_size=7,
        **SOUNDS | dict(num_conv_pos_embeddings=2),
    ),
    "WavLM": dict(model_type="wavlm", architectures=["WavLMForSequenceClassification"], **SOUNDS),
    "AST": dict(
        model_type="audio-spectrogram-transformer", architectures=["ASTForAudioClassification"], max_length=64, num_mel_bins=32,
        **WIDTH,
    ),
    "Moonshine": dict(
        model_type="moonshine", architectures=["MoonshineForConditionalGeneration"], hidden_size=64, intermediate_size=128,
        encoder_num_hidden_layers=2, decoder_num_hidden_layers=2, encoder_num_attention_heads=4, decoder_num_attention_heads=4,
        max_position_embeddings=64, **WORDS,
    ),
    "Parakeet": dict(
        model_type="parakeet_ctc", architectures=["ParakeetForCTC"], vocab_size=211,
        encoder_config=dict(num_mel_bins=32, subsampling_conv_channels=16, layerdrop=0.0, **WIDTH),
    ),
    "Speech2Text": dict(
        model_type="speech_to_text", architectures=["Speech2TextForConditionalGeneration"], max_source_positions=64,
        max_target_positions=64, input_feat_per_channel=16, conv_channels=32,
        **{key: value for key, value in BOTH.items() if key != "max_position_embeddings"},
    ),
    "SwiftFormer": dict(
        model_type="swiftformer", architectures=["SwiftFormerForImageClassification"], image_size=64, depths=[1] * 4,
        embed_dims=[8, 16, 32, 64], drop_path_rate=0.0,
    ),
    "MobileViT": dict(
        model_type="mobilevit", architectures=["MobileViTForImageClassification"], image_size=64, hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64], num_attention_heads=2,
    ),
    "PoolFormer": dict(
        model_type="poolformer", architectures=["PoolFormerForImageClassification"], image_size=64, depths=[1] * 4,
        hidden_sizes=[8, 16, 32, 64], drop_path_rate=0.0,
    ),
    "BiT": dict(
        model_type="bit", architectures=["BitForImageClassification"], image_size=64, embedding_size=16, hidden_sizes=[16, 32],
        depths=[1, 1], num_groups=4,
    ),
    "YOLOS": dict(
        model_type="yolos", architectures=["YolosForObjectDetection"], image_size=[32, 32], patch_size=8, num_detection_tokens=5,
        **WIDTH,
    ),
    "EfficientNet": dict(
        model_type="efficientnet", architectures=["EfficientNetForImageClassification"], image_size=64, width_coefficient=0.25,
        depth_coefficient=0.5, hidden_dim=320,
    ),
    "FNet": dict(
        model_type="fnet", vocab_size=211, hidden_size=64, num_hidden_layers=2, intermediate_size=128,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, architectures=["FNetForMaskedLM"],
    ),
    "RemBERT": dict(
        model_type="rembert", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        architectures=["RemBertForCausalLM"],
    ),
    "XLM-RoBERTa": dict(
        model_type="xlm-roberta", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        architectures=["XLMRobertaForCausalLM"],
    ),
    "XLM-RoBERTa XL": dict(
        model_type="xlm-roberta-xl", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        architectures=["XLMRobertaXLForCausalLM"],
    ),
    "RoBERTa (norms first)": dict(
        model_type="roberta-prelayernorm", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        architectures=["RobertaPreLayerNormForCausalLM"],
    ),
    "Megatron-BERT": dict(
        model_type="megatron-bert", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, pad_token_id=0, architectures=["MegatronBertForCausalLM"],
    ),
    "Nomic BERT": dict(
        model_type="nomic_bert", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, pad_token_id=0, head_dim=16,
        architectures=["NomicBertForMaskedLM"],
    ),
    "GTE": dict(
        model_type="gte", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=64, pad_token_id=0, architectures=["GteForMaskedLM"],
    ),
    "Jina embeddings v3": dict(
        model_type="jina_embeddings_v3", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        architectures=["JinaEmbeddingsV3ForMaskedLM"],
    ),
    "BERT generation": dict(
        model_type="bert-generation", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        architectures=["BertGenerationEncoder"],
    ),
    "Data2Vec (texts)": dict(
        model_type="data2vec-text", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        architectures=["Data2VecTextForCausalLM"],
    ),
    "ERNIE": dict(
        model_type="ernie", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, pad_token_id=0, architectures=["ErnieForCausalLM"],
    ),
    "MarkupLM": dict(
        model_type="markuplm", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        architectures=["MarkupLMForSequenceClassification"],
    ),
    "RoCBert": dict(
        model_type="roc_bert", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, pad_token_id=0, architectures=["RoCBertForCausalLM"],
    ),
    "Splinter": dict(
        model_type="splinter", vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, pad_token_id=0, architectures=["SplinterForQuestionAnswering"],
    ),
    "GPT": dict(
        model_type="openai-gpt", vocab_size=211, n_positions=64, n_embd=64, n_layer=2, n_head=4,
        architectures=["OpenAIGPTLMHeadModel"],
    ),
    "CTRL": dict(
        model_type="ctrl", vocab_size=211, n_positions=64, n_embd=64, n_layer=2, n_head=4,
        architectures=["CTRLLMHeadModel"],
    ),
    "GPT-SW3": dict(
        model_type="gpt-sw3", vocab_size=211, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=1,
        eos_token_id=2, architectures=["GPT2LMHeadModel"],
    ),
    "Phi-4 mini (longrope)": dict(
        model_type="phi3", partial_rotary_factor=0.75, original_max_position_embeddings=16,
        rope_scaling=dict(type="longrope", short_factor=[1.0] * 6, long_factor=[2.0] * 6), **DECODER,
    ),
    "PhiMoE": dict(
        model_type="phimoe", num_local_experts=4, router_jitter_noise=0.01, input_jitter_noise=0.01,
        rope_scaling=dict(
            type="longrope", short_factor=[1.0] * 8, long_factor=[2.0] * 8, short_mscale=1.1, long_mscale=1.2,
            original_max_position_embeddings=16,
        ), **DECODER,
    ),
    "CANINE": dict(
        model_type="canine", architectures=["CanineForSequenceClassification"], max_position_embeddings=64,
        local_transformer_stride=8, num_hash_buckets=64, num_hash_functions=4, **WIDTH,
    ),
    "Perceiver": dict(
        model_type="perceiver", architectures=["PerceiverForMaskedLM"], num_latents=8, d_latents=64, d_model=32, num_blocks=1,
        num_self_attends_per_block=2, num_self_attention_heads=4, num_cross_attention_heads=4, max_position_embeddings=64, **WORDS,
    ),
    "RecurrentGemma": dict(
        model_type="recurrent_gemma", lru_width=64, attention_window_size=8, **DECODER | dict(num_hidden_layers=3),
    ),
    "RWKV": dict(
        model_type="rwkv", hidden_size=64, attention_hidden_size=64, num_hidden_layers=2, context_length=64, intermediate_size=128,
        **WORDS,
    ),
    "xLSTM": dict(model_type="xlstm", hidden_size=64, embedding_dim=64, num_heads=4, num_blocks=2, num_hidden_layers=2, **WORDS),
    "Mistral 3, images": dict(
        model_type="mistral3", architectures=["Mistral3ForConditionalGeneration"], image_token_index=5, spatial_merge_size=2,
        text_config=dict(model_type="mistral", head_dim=16, **DECODER), vision_config=PIXTRAL,
    ),
    "Pixtral, images": dict(
        model_type="llava", architectures=["LlavaForConditionalGeneration"], image_token_index=5, vision_feature_layer=-1,
        vision_feature_select_strategy="full", vision_config=PIXTRAL,
        text_config=dict(model_type="mistral", head_dim=16, **DECODER),
    ),
    "SmolVLM, images": dict(
        model_type="smolvlm", architectures=["SmolVLMForConditionalGeneration"], image_token_id=5, scale_factor=2,
        text_config=dict(model_type="llama", **DECODER), vision_config=dict(model_type="smolvlm_vision", **TOWER),
    ),
    "Idefics 3, images": dict(
        model_type="idefics3", architectures=["Idefics3ForConditionalGeneration"], image_token_id=5, scale_factor=2,
        text_config=dict(model_type="llama", **DECODER), vision_config=TOWER,
    ),
    "InternVL, images": dict(
        model_type="internvl", architectures=["InternVLForConditionalGeneration"], image_token_id=5,
        text_config=dict(model_type="qwen2", **DECODER), vision_config=TOWER | dict(image_size=[32, 32], patch_size=[8, 8]),
    ),
    "Aya Vision, images": dict(
        model_type="aya_vision", architectures=["AyaVisionForConditionalGeneration"], image_token_index=5,
        text_config=dict(model_type="cohere2", sliding_window=8, **DECODER),
        vision_config=dict(model_type="siglip_vision_model", vision_use_head=False, **TOWER),
    ),
    "Llama 3.2 Vision": dict(
        model_type="mllama", architectures=["MllamaForConditionalGeneration"], image_token_index=5,
        text_config=dict(cross_attention_layers=[1], rope_parameters=dict(rope_type="default", rope_theta=1e4), **DECODER),
        vision_config=dict(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_global_layers=1, attention_heads=4, image_size=32,
            patch_size=8, vision_output_dim=128, max_num_tiles=2, intermediate_layers_indices=[0],
            supported_aspect_ratios=[[1, 1], [1, 2], [2, 1]],
        ),
    ),
    "Qwen2-Audio": dict(
        model_type="qwen2_audio", architectures=["Qwen2AudioForConditionalGeneration"], audio_token_index=5,
        text_config=dict(model_type="qwen2", **DECODER), audio_config=dict(
            model_type="qwen2_audio_encoder", num_mel_bins=16, d_model=64, encoder_layers=2, encoder_attention_heads=4,
            encoder_ffn_dim=128, max_source_positions=32,
        ),
    ),
    "Voxtral": dict(
        model_type="voxtral", architectures=["VoxtralForConditionalGeneration"], audio_token_id=5,
        text_config=dict(model_type="llama", head_dim=16, **DECODER),
        audio_config=dict(num_mel_bins=16, max_source_positions=32, **WIDTH | dict(intermediate_size=256)),
    ),
}
LARGE: dict[str, tuple[dict[str, Any], int, int]] = {
    "GPT-2 XL": (dict(model_type="gpt2", n_layer=48, n_head=25, n_embd=1600), 64, 1024),
    "Llama 3 8B": (
        dict(
            model_type="llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
            num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192,
        ), 64, 8192,
    ),
    "Llama 3 70B": (
        dict(
            model_type="llama", hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
            num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192,
        ), 1024, 4096,
    ),
    "Mixtral 8x7B": (dict(model_type="mixtral"), 64, 4096),
    "BERT large": (
        dict(
            model_type="bert", architectures=["BertForMaskedLM"], hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
            num_attention_heads=16,
        ), 256, 512,
    ),
    "ViT-L/16": (
        dict(model_type="vit", hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16), 512, 0,
    ),
    "T5 11B": (
        dict(
            model_type="t5", d_model=1024, d_kv=128, d_ff=65536, num_layers=24, num_heads=128, vocab_size=32128,
            decoder_start_token_id=0,
        ), 64, 512,
    ),
}
