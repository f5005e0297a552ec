"""What people try first: published networks of Hugging Face, and modules of PyTorch, planned on H100 in bfloat16 with Adam.

python benchmarks/front_door.py [--json] [--only NAME ...] [--budget 5s] [--jobs 2] [--limit 300] [--processor]

Each is imported and planned in a process of its own, without weights: operators, seconds, the process's largest memory, and for 8
and for 64 devices the plan that a small budget finds, with its milliseconds and MFU, or why there is none. Sizes are those that
the configurations were published with; samples a step are as many as 64 devices need, tokens those of the pretraining or as said.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

DEVICES = (8, 64)


def decoder(kind: str, width: int, inner: int, layers: int, heads: int, groups: int, words: int, **more: Any) -> dict[str, Any]:
    """A config of a decoder with gates."""
    return dict(
        model_type=kind, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=groups, vocab_size=words, **(dict(max_position_embeddings=8192, tie_word_embeddings=False) | more),
    )


def encoder(kind: str, head: str, **more: Any) -> dict[str, Any]:
    """A config of the size that BERT calls large."""
    large = dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16)
    return dict(model_type=kind, architectures=[head]) | large | more


Row = tuple[str, dict[str, Any], int, int | None]  # family, config, samples a step, tokens of a sample
CONFIGS: dict[str, Row] = {
    "Llama 2 7B": ("Llama", decoder("llama", 4096, 11008, 32, 32, 32, 32000), 64, 4096),
    "Llama 3 8B": ("Llama", decoder("llama", 4096, 14336, 32, 32, 8, 128256), 64, 8192),
    "Llama 3.2 1B": ("Llama", decoder("llama", 2048, 8192, 16, 32, 8, 128256, tie_word_embeddings=True), 64, 4096),
    "Llama 3 70B": ("Llama", decoder("llama", 8192, 28672, 80, 64, 8, 128256), 64, 4096),
    "Llama 4 Scout, text": ("Llama", dict(model_type="llama4_text"), 64, 4096),
    "Qwen2 7B": ("Qwen", decoder("qwen2", 3584, 18944, 28, 28, 4, 152064), 64, 4096),
    "Qwen2.5 72B": ("Qwen", decoder("qwen2", 8192, 29568, 80, 64, 8, 152064), 64, 4096),
    "Qwen3 8B": ("Qwen", decoder("qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128), 64, 4096),
    "Qwen3 30B-A3B": (
        "Qwen", decoder("qwen3_moe", 2048, 6144, 48, 32, 4, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8,
                        moe_intermediate_size=768), 64, 4096,
    ),
    "Mistral 7B": ("Mistral", decoder("mistral", 4096, 14336, 32, 32, 8, 32000, sliding_window=4096), 64, 8192),
    "Mixtral 8x7B": ("Mistral", dict(model_type="mixtral"), 64, 4096),
    "Gemma 2B": ("Gemma", decoder("gemma", 2048, 16384, 18, 8, 1, 256000, head_dim=256, tie_word_embeddings=True), 64, 4096),
    "Gemma 2 9B": (
        "Gemma", decoder("gemma2", 3584, 14336, 42, 16, 8, 256000, head_dim=256, tie_word_embeddings=True), 64, 4096,
    ),
    "Gemma 3 12B, text": (
        "Gemma", decoder("gemma3_text", 3840, 15360, 48, 16, 8, 262208, head_dim=256, tie_word_embeddings=True), 64, 4096,
    ),
    "GPT-2 XL": ("GPT", dict(model_type="gpt2", n_layer=48, n_head=25, n_embd=1600), 64, 1024),
    "GPT-J 6B": ("GPT", dict(model_type="gptj"), 64, 2048),
    "GPT-NeoX 20B": ("GPT", dict(model_type="gpt_neox"), 64, 2048),
    "GPT-OSS 20B": ("GPT", dict(model_type="gpt_oss", num_hidden_layers=24, num_local_experts=32), 64, 4096),
    "OPT 6.7B": (
        "GPT", dict(model_type="opt", hidden_size=4096, ffn_dim=16384, num_hidden_layers=32, num_attention_heads=32,
                    word_embed_proj_dim=4096), 64, 2048,
    ),
    "BLOOM 7B": ("GPT", dict(model_type="bloom", hidden_size=4096, n_layer=30, n_head=32, vocab_size=250880), 64, 2048),
    "Falcon 7B": ("GPT", dict(model_type="falcon"), 64, 2048),
    "MPT 7B": ("GPT", dict(model_type="mpt", d_model=4096, n_heads=32, n_layers=32), 64, 2048),
    "Phi-3 mini": ("others", dict(model_type="phi3", max_position_embeddings=4096, pad_token_id=0), 64, 4096),
    "OLMo 2 7B": ("others", decoder("olmo2", 4096, 11008, 32, 32, 32, 100352), 64, 4096),
    "StarCoder 2 3B": ("others", dict(model_type="starcoder2", hidden_size=3072, num_attention_heads=24), 64, 4096),
    "DeepSeek V2 Lite": (
        "DeepSeek", decoder("deepseek_v2", 2048, 10944, 27, 16, 16, 102400, q_lora_rank=None, moe_intermediate_size=1408,
                            n_routed_experts=64, num_experts_per_tok=6, n_shared_experts=2, first_k_dense_replace=1, n_group=1,
                            topk_group=1), 64, 4096,
    ),
    "DeepSeek V3": ("DeepSeek", dict(model_type="deepseek_v3"), 64, 4096),
    "Mamba 2.8B": ("state space", dict(model_type="mamba", hidden_size=2560, num_hidden_layers=64), 64, 2048),
    "Gemma 3n E2B, text": (
        "Gemma", dict(model_type="gemma3n_text", num_hidden_layers=30, intermediate_size=[8192] * 30, num_kv_shared_layers=10,
                      activation_sparsity_pattern=[0.95] * 10 + [0.0] * 20), 64, 4096,
    ),
    "Gemma 3n E4B, text": ("Gemma", dict(model_type="gemma3n_text"), 64, 4096),
    "Qwen3-Next 80B-A3B": ("Qwen", dict(model_type="qwen3_next"), 64, 4096),
    "Qwen3.5 9B, text": ("Qwen", dict(model_type="qwen3_5_text"), 64, 4096),
    "Kimi Linear 48B-A3B": (
        "others", dict(model_type="kimi_linear", layer_types=[
            "full_attention" if i % 4 == 3 or i == 26 else "linear_attention" for i in range(27)
        ]), 64, 4096,
    ),
    "Apertus 8B": ("others", decoder("apertus", 4096, 21504, 32, 32, 8, 131072), 64, 4096),
    "Apertus 70B": ("others", decoder("apertus", 8192, 43008, 80, 64, 8, 131072), 64, 4096),
    "SmolLM3 3B": ("others", dict(model_type="smollm3"), 64, 4096),
    "GLM 4.5 Air": (
        "others", decoder("glm4_moe", 4096, 10944, 46, 96, 8, 151552, head_dim=128, attention_bias=True), 64, 4096,
    ),
    "GLM 4.5": (
        "others", decoder("glm4_moe", 5120, 12288, 92, 96, 8, 151552, head_dim=128, attention_bias=True, use_qk_norm=True,
                          n_routed_experts=160, moe_intermediate_size=1536, first_k_dense_replace=3), 64, 4096,
    ),
    "Ernie 4.5 21B-A3B": ("others", dict(model_type="ernie4_5_moe"), 64, 4096),
    "Hunyuan A13B": (
        "others", decoder("hunyuan_v1_moe", 4096, 3072, 32, 32, 8, 128167, head_dim=128, num_experts=64, moe_topk=8), 64, 4096,
    ),
    "MiniMax 01": (
        "others", decoder("minimax", 6144, 9216, 80, 64, 8, 200064, head_dim=128, num_local_experts=32, num_experts_per_tok=2,
                          layer_types=["full_attention" if i % 8 == 7 else "linear_attention" for i in range(80)]), 64, 4096,
    ),
    "Mamba 2 2.7B": (
        "state space", dict(model_type="mamba2", hidden_size=2560, num_heads=80, n_groups=1, vocab_size=50288,
                            tie_word_embeddings=True), 64, 2048,
    ),
    "Bamba 9B": (
        "state space", decoder("bamba", 4096, 14336, 32, 32, 8, 128256, mamba_d_state=128, attn_layer_indices=[9, 18, 27]),
        64, 4096,
    ),
    "Falcon-H1 7B": (
        "state space", decoder("falcon_h1", 3072, 12288, 44, 12, 2, 130048, head_dim=128, mamba_d_ssm=3072, mamba_n_heads=24,
                               mamba_d_head=128), 64, 4096,
    ),
    "Granite 4 H Small": (
        "state space", decoder("granitemoehybrid", 4096, 768, 40, 32, 8, 100352, mamba_d_state=128, num_local_experts=72,
                               num_experts_per_tok=10, shared_intermediate_size=1536, position_embedding_type="nope",
                               layer_types=["attention" if i % 10 == 5 else "mamba" for i in range(40)]), 64, 4096,
    ),
    "Zamba 2 7B": (
        "state space", dict(model_type="zamba2", hidden_size=3584, intermediate_size=14336, num_hidden_layers=81,
                            attention_hidden_size=7168, attention_head_dim=224, n_mamba_heads=112, mamba_headdim=64,
                            mamba_ngroups=2, num_mem_blocks=2, use_mem_rope=True, hybrid_layer_ids=[6, *range(11, 78, 6)],
                            layers_block_type=["hybrid" if i in (6, *range(11, 78, 6)) else "mamba" for i in range(81)]),
        64, 4096,
    ),
    "OLMo hybrid 7B": ("state space", dict(model_type="olmo_hybrid"), 64, 4096),
    "BERT large": ("encoders", encoder("bert", "BertForMaskedLM"), 512, 512),
    "RoBERTa large": (
        "encoders", encoder("roberta", "RobertaForMaskedLM", vocab_size=50265, max_position_embeddings=514), 512, 512,
    ),
    "ModernBERT large": (
        "encoders", encoder("modernbert", "ModernBertForMaskedLM", intermediate_size=2624, num_hidden_layers=28), 512, 1024,
    ),
    "DeBERTa v2 XL": (
        "encoders", encoder("deberta-v2", "DebertaV2ForMaskedLM", hidden_size=1536, intermediate_size=6144, num_attention_heads=24),
        512, 512,
    ),
    "DeBERTa v3 large": (
        "encoders", encoder("deberta-v2", "DebertaV2ForMaskedLM", vocab_size=128100, type_vocab_size=0, relative_attention=True,
                            position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
                            position_biased_input=False), 512, 512,
    ),
    "NLLB 3.3B": (
        "encoder and decoder", dict(model_type="m2m_100", architectures=["M2M100ForConditionalGeneration"], d_model=2048,
                                    encoder_layers=24, decoder_layers=24, encoder_ffn_dim=8192, decoder_ffn_dim=8192,
                                    vocab_size=256206), 64, 512,
    ),
    "T5 11B": (
        "encoder and decoder", dict(model_type="t5", d_model=1024, d_kv=128, d_ff=65536, num_layers=24, num_heads=128,
                                    vocab_size=32128, decoder_start_token_id=0), 64, 512,
    ),
    "BART large": ("encoder and decoder", dict(model_type="bart", architectures=["BartForConditionalGeneration"]), 512, 1024),
    "Whisper large v3": (
        "encoder and decoder", dict(model_type="whisper", architectures=["WhisperForConditionalGeneration"], d_model=1280,
                                    encoder_layers=32, decoder_layers=32,
                                    encoder_attention_heads=20, decoder_attention_heads=20, encoder_ffn_dim=5120,
                                    decoder_ffn_dim=5120, num_mel_bins=128, vocab_size=51866), 64, 448,
    ),
    "ViT-L/16": ("images", encoder("vit", "ViTForImageClassification"), 512, None),
    "DINOv2 giant": (
        "images", dict(model_type="dinov2", architectures=["Dinov2ForImageClassification"], hidden_size=1536, num_hidden_layers=40,
                       num_attention_heads=24, use_swiglu_ffn=True), 512, None,
    ),
    "Swin large": (
        "images", dict(model_type="swin", embed_dim=192, depths=[2, 2, 18, 2], num_heads=[6, 12, 24, 48]), 512, None,
    ),
    "ConvNeXt V2 large": (
        "images", dict(model_type="convnextv2", depths=[3, 3, 27, 3], hidden_sizes=[192, 384, 768, 1536]), 512, None,
    ),
    "SegFormer B5": (
        "images", dict(model_type="segformer", architectures=["SegformerForImageClassification"], depths=[3, 6, 40, 3],
                       hidden_sizes=[64, 128, 320, 512], image_size=512), 512, None,
    ),
    "DETR": ("images", dict(model_type="detr", architectures=["DetrForObjectDetection"], use_timm_backbone=False), 64, None),
    "CLIP ViT-L/14": (
        "multimodal", dict(model_type="clip", architectures=["CLIPModel"], projection_dim=768,
                           vision_config=dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
                                              num_attention_heads=16, patch_size=14),
                           text_config=dict(hidden_size=768, intermediate_size=3072, num_attention_heads=12)), 512, None,
    ),
    "LLaVA 1.5 7B": ("multimodal", dict(model_type="llava", architectures=["LlavaForConditionalGeneration"]), 64, 2048),
    "LLaVA 1.5 7B, text": ("multimodal", dict(model_type="llava", architectures=["LlavaForConditionalGeneration"], part="text"), 64,
                           2048),
    "Gemma 3 4B": (
        "multimodal", dict(model_type="gemma3", architectures=["Gemma3ForConditionalGeneration"],
                           vision_config=dict(model_type="siglip_vision_model", hidden_size=1152, intermediate_size=4304,
                                              num_hidden_layers=27, num_attention_heads=16, image_size=896, patch_size=14)), 64,
        2048,
    ),
    "Qwen2-VL 7B, text": (
        "multimodal", dict(model_type="qwen2_vl", architectures=["Qwen2VLForConditionalGeneration"], part="text",
                           text_config=decoder("qwen2_vl_text", 3584, 18944, 28, 28, 4, 152064),
                           vision_config=dict(hidden_size=3584)), 64, 2048,
    ),
    "Qwen2.5-VL 7B": ("multimodal", dict(
        model_type="qwen2_5_vl", architectures=["Qwen2_5_VLForConditionalGeneration"],
        text_config=decoder("qwen2_5_vl_text", 3584, 18944, 28, 28, 4, 152064),
        vision_config=dict(hidden_size=1280, out_hidden_size=3584),
    ), 64, 2048),
    "Qwen3-VL 8B": ("multimodal", dict(
        model_type="qwen3_vl", architectures=["Qwen3VLForConditionalGeneration"],
        text_config=decoder("qwen3_vl_text", 4096, 12288, 36, 32, 8, 151936, head_dim=128),
        vision_config=dict(out_hidden_size=4096),
    ), 64, 2048),
    "Llama 4 Scout": ("multimodal", dict(
        model_type="llama4", architectures=["Llama4ForConditionalGeneration"], vision_config=dict(
            hidden_size=1408, image_size=336, vision_output_dim=4096,
        ),
    ), 64, 2048),
    "Seed-OSS 36B": ("others", decoder("seed_oss", 5120, 27648, 64, 80, 8, 155136, head_dim=128), 64, 4096),
    "Nemotron-H 8B": (
        "state space", dict(model_type="nemotron_h", hidden_size=4096, intermediate_size=21504, num_attention_heads=32,
                            num_key_value_heads=8, head_dim=128, vocab_size=131072, mamba_num_heads=128, mamba_head_dim=64,
                            n_groups=8, hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"), 64, 4096,
    ),
    "Mistral Small 3.2": ("multimodal", dict(
        model_type="mistral3", architectures=["Mistral3ForConditionalGeneration"], tie_word_embeddings=False,
        text_config=decoder("mistral", 5120, 32768, 40, 32, 8, 131072, head_dim=128, max_position_embeddings=131072),
        vision_config=dict(model_type="pixtral", image_size=1540, patch_size=14),
    ), 64, 4096),
    "Llama 3.2 11B Vision": ("multimodal", dict(model_type="mllama", architectures=["MllamaForConditionalGeneration"]), 64, 4096),
    "SmolVLM2 2.2B": ("multimodal", dict(
        model_type="smolvlm", architectures=["SmolVLMForConditionalGeneration"], scale_factor=3, image_token_id=49190,
        text_config=decoder("llama", 2048, 8192, 24, 32, 32, 49280), vision_config=dict(
            hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16, image_size=384, patch_size=14,
        ),
    ), 64, 2048),
    "Qwen2-Audio 7B": ("multimodal", dict(
        model_type="qwen2_audio", architectures=["Qwen2AudioForConditionalGeneration"],
        text_config=decoder("qwen2", 4096, 11008, 32, 32, 32, 156032),
    ), 64, 2048),
    "Gemma 3 4B, text": ("multimodal", dict(model_type="gemma3", architectures=["Gemma3ForConditionalGeneration"], part="text"), 64,
                         2048),
}


def _modules() -> dict[str, tuple[Callable[[], Any], tuple[Any, ...]]]:
    """Modules of torch.nn, and an example of the arguments of each."""
    from torch import nn

    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filters = nn.Sequential(nn.Conv1d(80, 1024, 5, 2, 2), nn.BatchNorm1d(1024), nn.ReLU())
            self.layers, self.scores = nn.GRU(1024, 1024, 5, batch_first=True, bidirectional=True), nn.Linear(2048, 5000)

        def forward(self, x: Any) -> Any:
            return self.scores(self.layers(self.filters(x).transpose(1, 2))[0])

    class Enlarging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            each = [nn.Sequential(nn.Conv2d(256, 256, 3, padding=1), nn.PReLU(256)) for _ in range(32)]
            self.first, self.last = nn.Conv2d(3, 256, 3, padding=1), nn.Conv2d(256, 48, 3, padding=1)
            self.blocks = nn.ModuleList(each)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            for block in self.blocks:
                y = y + block(y)
            wide = nn.functional.interpolate(x, scale_factor=4, mode="bicubic")
            return nn.functional.pixel_shuffle(self.last(y), 4) + wide

    def volumes() -> Any:
        def block(i: int, o: int, step: int) -> Any:
            return nn.Sequential(nn.Conv3d(i, o, 3, step, 1, bias=False), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01))

        return nn.Sequential(
            block(4, 32, 1), block(32, 64, 2), block(64, 128, 2), block(128, 256, 2), nn.Flatten(2), nn.AdaptiveAvgPool1d(1),
            nn.Flatten(), nn.Linear(256, 10),
        )

    def translation() -> Any:
        return nn.Transformer(1024, 16, 6, 6, 4096, batch_first=True)

    return {
        "GRU for speech": (Speech, ((512, 80, 800),)), "super-resolution": (Enlarging, ((64, 3, 96, 96),)),
        "3-D convolutions": (volumes, ((64, 4, 64, 64, 64),)),
        "nn.Transformer": (translation, ((512, 128, 1024), (512, 128, 1024))),
    }


MODULES = ("GRU for speech", "super-resolution", "3-D convolutions", "nn.Transformer")


def graph_of(name: str) -> Any:
    """The graph of a configuration or a module in bfloat16, without weights."""
    import taskflow
    from taskflow.models.huggingface import from_config
    from taskflow.models.pytorch import on_meta

    if name in CONFIGS:
        _, config, batch, steps = CONFIGS[name]
        config = dict(config)
        return from_config(config, batch, steps, part=config.pop("part", None), dtype="bfloat16")
    make, examples = _modules()[name]
    with on_meta():
        module = make().bfloat16()
    loss = "mse_loss" if name in ("super-resolution", "nn.Transformer") else "cross_entropy"
    return taskflow.from_torch(module, *examples, verify=False, loss=loss)


def one(name: str, budget: str, processor: bool) -> dict[str, Any]:
    """A row, measured in this process. ``processor``: budgets are seconds of the processor, as beside other work."""
    import taskflow
    from taskflow.optimizer import Deadline, step_units
    from taskflow.optimizer import search as searching

    if processor:
        sys.modules[searching.__module__].Deadline = partial(Deadline, now=time.process_time)  # type: ignore[attr-defined]
    said: dict[str, Any] = {"network": name, "family": CONFIGS[name][0] if name in CONFIGS else "modules"}
    start, used = time.perf_counter(), time.process_time()
    try:
        graph = graph_of(name)
    except Exception as error:  # of whatever kind it is: the table says it
        return said | {"refused": " ".join(str(error).split())} | _memory(start, used)
    said |= {"operators": len(graph), "parameters": graph.parameter_count} | _memory(start, used)
    for devices in () if budget == "none" else DEVICES:
        begun = time.perf_counter()
        try:
            machine, rule = taskflow.load_machine("h100", devices), taskflow.Adam()
            found = searching(graph, machine, budget=budget, rule=rule, workers=1 if processor else None)
            mfu = step_units(graph, machine, rule, found.seconds).mfu
            plan = {"plan": found.strategy.name, "ms": found.seconds * 1e3, "mfu": mfu}
        except Exception as error:
            plan = {"refused": " ".join(str(error).split())}
        said[f"on_{devices}"] = plan | {"seconds": time.perf_counter() - begun}
    return said | {"peak_GB": _memory(start, used)["peak_GB"]}


def _memory(start: float, used: float) -> dict[str, float]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - used, "peak_GB": peak}


def child(name: str, budget: str, limit: float, processor: bool) -> dict[str, Any]:
    """A row, measured in a process of its own, which gets so many seconds."""
    command = [sys.executable, __file__, "--one", name, "--budget", budget, *["--processor"] * processor]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"network": name, "refused": f"no answer in {limit:g} s"}
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if lines and not done.returncode else {"network": name, "refused": done.stderr.strip()[-300:]}


def text(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "refused" in row:
        return f"| {row['network']} | | {row.get('seconds', 0):.0f} ({row.get('processor_seconds', 0):.0f}) " \
            f"| {row.get('peak_GB', 0):.2f} | {row['refused'][:160]} | |"
    cells = [""] * 2 if "on_8" not in row else [
        f"{found['plan']}: {found['ms']:,.0f} ms, {found['mfu'] or 0:.0%}" if "plan" in found else found["refused"][:120]
        for found in (row[f"on_{devices}"] for devices in DEVICES)
    ]
    size = f"{row['parameters'] / 1e9:.2f} G" if row["parameters"] >= 1e9 else f"{row['parameters'] / 1e6:.0f} M"
    said = f"{row['seconds']:.0f} ({row['processor_seconds']:.0f})"
    return f"| {row['network']} | {size}, {row['operators']:,} | {said} | {row['peak_GB']:.2f} | {cells[0]} | {cells[1]} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[*CONFIGS, *MODULES], metavar="NAME", help="some of them")
    parser.add_argument("--budget", default="5s", help="of each search; none: imports alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--limit", type=float, default=600, help="seconds for each network")
    parser.add_argument("--processor", action="store_true", help="budgets are seconds of the processor, as beside other work")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = Path(__file__).resolve().parent  # whose kernels.py transformers would take for the package kernels
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != folder]
    if options.one:
        warnings.simplefilter("ignore")
        print(json.dumps(one(options.one, options.budget, options.processor)))
        return
    if not options.json:
        print("| network | parameters, operators | import s (of a processor) | memory GB | 8 H100 | 64 H100 |")
        print("|---" * 6 + "|")
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda name: child(name, options.budget, options.limit, options.processor), options.only):
            print(json.dumps(row) if options.json else text(row), flush=True)


if __name__ == "__main__":
    main()
