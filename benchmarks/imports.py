"""Which networks of Hugging Face and timm import, and whether they compute what PyTorch computes: loss and gradients of a step.

    python benchmarks/imports.py                     # the table of docs/benchmarks.md: recorded, and by torch.export
    python benchmarks/imports.py --networks Llama T5
    python benchmarks/imports.py --large             # sizes that people train, without weights: seconds and memory
    python benchmarks/imports.py --timm              # timm's networks for images (pip install timm torchvision)

With --json a line of JSON for each row. Configurations are written here; weights are random. Needs the extra hf.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import taskflow
from taskflow.checkpoint import load_weights
from taskflow.models.huggingface import examples_for, from_config, module_of
from taskflow.models.huggingface.parts import images_beside
from taskflow.models.pytorch import from_torch, weights_of
from taskflow.models.pytorch.dropping import probability_name
from taskflow.models.pytorch.exported import why_not_exported

WIDTH = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
WORDS = dict(vocab_size=211, bos_token_id=1, eos_token_id=2, pad_token_id=0)
DECODER = WIDTH | WORDS | dict(num_key_value_heads=2, max_position_embeddings=128)
BOTH = dict(
    d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
    decoder_ffn_dim=128, max_position_embeddings=64, **WORDS,
)
BATCH, STEPS = 4, 32
RATE = 2.0**30  # of learning: what a weight was is nothing beside its gradient then, which shows to all digits
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
}
PADDED = ("GPT-2", "Llama", "Mistral, window 8", "Mixtral", "Qwen2", "BERT", "T5")  # again with an attention_mask
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


class Compared(NamedTuple):
    """An import beside PyTorch. ``seconds``: of the import, with verification (and with torch.export). ``loss``, ``gradients``:
    how far those of a step in float32 are off PyTorch's in double precision, relatively (the largest difference of any element,
    over the largest gradient). ``rounding``: how far PyTorch's own gradients in float32 are off."""

    graph: taskflow.OperatorGraph
    seconds: float
    loss: float
    gradients: float
    rounding: float


def network(of: str | dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A network by its name or configuration, in training and without dropout, and examples of its arguments."""
    if isinstance(of, str) and of not in CONFIGS:
        from timm_networks import timm_module

        module, keywords = timm_module(of)
        return undropped(module), keywords
    module = without_dropout(CONFIGS[of] if isinstance(of, str) else of)
    _, keywords = examples_for(module, BATCH, None if module.main_input_name == "pixel_values" else STEPS)
    return module, keywords | (images_beside(module, BATCH) if "input_ids" in keywords else {})


def compared(of: str | dict[str, Any], masked: bool = False, exported: bool = False) -> Compared:
    """Import a network (by its name or configuration), recorded or ``exported``, and train it a step beside PyTorch. ``masked``:
    with an attention_mask."""
    import torch

    module, keywords = network(of)
    numbers = torch.Generator().manual_seed(1)
    keywords = {
        key: torch.randn(value.shape, generator=numbers) if value.is_floating_point()
        else torch.randint(3, 200, value.shape, generator=numbers) for key, value in keywords.items()
    }
    if masked:
        lengths = torch.tensor([STEPS - 5 * i for i in range(BATCH)])
        keywords["attention_mask"] = (torch.arange(STEPS)[None] < lengths[:, None]).long()
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imported = torch.export.export(module, (), keywords) if exported else module  # which has the module's own parameters
        graph = from_torch(imported) if exported else from_torch(module, keywords=keywords)
    seconds = time.perf_counter() - start
    _place_images(graph, keywords)
    exact = in_double(module)
    logits = _logits(module, keywords)
    labels = torch.randint(logits.shape[-1], logits.shape[:-1], generator=numbers)
    _trained(module, keywords, labels)
    loss = _trained(exact, {k: v.double() if v.is_floating_point() else v for k, v in keywords.items()}, labels)
    gradients = {name: _gradient(parameter).double() for name, parameter in exact.named_parameters()}
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    rounding = max(
        float((_gradient(parameter) - gradients[name]).abs().max()) for name, parameter in module.named_parameters()
    ) / largest
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0], taskflow.SGD(lr=RATE))
    before = weights_of(imported)
    load_weights(run, before)
    feeds = {node.name: keywords[node.name].numpy() for node in graph if node.operator.kind == "input" and node.name in keywords}
    ours = run.train(feeds | {"labels": labels.numpy()})
    after = run.weights() or {}
    trained = {parameter.name for parameter in graph.parameters}
    found = {name: (np.array(before[name]) - after[name].astype(np.float64)) / RATE for name in trained}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(gradients[name])
    theirs = weights_of(imported)
    off = max(float(np.abs(found[name] - theirs[name]).max()) for name in trained)
    return Compared(graph, seconds, abs(ours - loss) / abs(loss), off / largest, rounding)


def in_double(module: Any) -> Any:
    """A copy of a module in double precision, in which experts go one by one: PyTorch's product of groups has no such type."""
    exact = copy.deepcopy(module).double()
    if hasattr(exact, "set_experts_implementation"):
        exact.set_experts_implementation("eager")
    return exact


def _logits(module: Any, keywords: dict[str, Any]) -> Any:
    """What a module returns as scores."""
    import torch

    returned = module(**keywords)
    return returned if isinstance(returned, torch.Tensor) else getattr(returned, "logits", returned[0])


def _trained(module: Any, keywords: dict[str, Any], labels: Any) -> float:
    """The loss of a module, whose parameters have its gradients then."""
    import torch

    logits = _logits(module, keywords)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    loss.backward()
    return loss.item()


def _gradient(parameter: Any) -> Any:
    """The gradient of a parameter, of zeros where the loss does not depend on it."""
    import torch

    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _place_images(graph: Any, keywords: dict[str, Any]) -> None:
    """Give each sample as many of an image's tokens as the image has rows, at places of its own."""
    import torch

    numbers = torch.Generator().manual_seed(2)
    for node in graph:
        if node.operator.kind == "masked_scatter":
            tokens, token, rows = keywords[node.inputs[1].name], node.operator.token, node.inputs[2].shape[1]
            tokens[tokens == token] = 3
            for sample in tokens:
                sample[torch.randperm(len(sample), generator=numbers)[:rows]] = token


def without_dropout(config: dict[str, Any]) -> Any:
    """The module of a config with random weights, in training, without dropout, whose random numbers are not PyTorch's."""
    import torch

    torch.manual_seed(0)
    return undropped(module_of(config, weights=True).train())


def undropped(module: Any) -> Any:
    """The module without dropout."""
    for part in module.modules():
        if (name := probability_name(part)) is not None:
            setattr(part, name, 0.0)
    for key in ("attention_dropout", "attn_pdrop", "dropout_rate", "attention_probs_dropout_prob"):
        for part in (module, *module.modules()):
            if hasattr(getattr(part, "config", None), key):
                setattr(part.config, key, 0.0)
    for part in module.modules():
        for key in ("attention_dropout", "dropout", "dropout_prob"):
            if isinstance(getattr(part, key, None), float):
                setattr(part, key, 0.0)
    return module


def row(name: str, masked: bool, exported: bool) -> dict[str, Any]:
    """A network in one of the two ways, as it is written with --json: figures, or why it is refused."""
    said: dict[str, Any] = {"network": name, "attention_mask": masked, "by": "torch.export" if exported else "recording"}
    try:
        found = compared(name, masked, exported)
    except Exception as error:  # of torch.export: of any kind
        return said | {"refused": " ".join(str(why_not_exported(error) or error).split())}
    return said | {
        "operators": len(found.graph), "parameters": found.graph.parameter_count, "import_seconds": found.seconds,
        "loss_off": found.loss, "gradients_off": found.gradients,
        "rounding_of_pytorch": found.rounding,
    }


def figures(found: dict[str, Any]) -> list[str]:
    """A row's cells: operators, seconds, differences (in brackets PyTorch's own)."""
    if "refused" in found:
        return ["refused", "", "", ""]
    off = f"{found['gradients_off']:.1e} ({found['rounding_of_pytorch']:.1e})"
    return [str(found["operators"]), f"{found['import_seconds']:.1f}", f"{found['loss_off']:.1e}", off]


def small(names: Sequence[str], as_json: bool) -> None:
    """Print the table of networks, equal to PyTorch or refused, and below it why."""
    refused = []
    if not as_json:
        ways = "operators | import s | loss | gradients"
        print(f"| network | parameters | {ways} | exported: {ways} |")
        print("|---" * 10 + "|")
    rows = [(name, False) for name in names] + [(name, True) for name in names if name in PADDED]
    for name, masked in rows:
        both = [row(name, masked, exported) for exported in (False, True)]
        title = f"{name}, attention_mask" if masked else name
        refused += [(f"{title}, {found['by']}", found["refused"]) for found in both if "refused" in found]
        if as_json:
            print("\n".join(map(json.dumps, both)), flush=True)
            continue
        count = next((f"{found['parameters']:,}" for found in both if "parameters" in found), "")
        print("| " + " | ".join([title, count, *figures(both[0]), *figures(both[1])]) + " |", flush=True)
    for title, why in () if as_json else refused:
        print(f"\n{title}: {why}")


def large(as_json: bool) -> None:
    """Print the table of sizes that people train."""
    if not as_json:
        print("| network | samples x tokens | parameters | operators | import s | memory of the process, GB |")
        print("|---|---|---|---|---|---|")
    for name, (config, batch, steps) in LARGE.items():
        start = time.perf_counter()
        graph = from_config(config, batch, steps or None)
        seconds, peak = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        if as_json:
            said = {"network": name, "samples": batch, "tokens": steps or None, "parameters": graph.parameter_count}
            print(json.dumps(said | {"operators": len(graph), "import_seconds": seconds, "peak_GB": peak}), flush=True)
            continue
        print(
            f"| {name} | {batch} x {steps or 'image'} | {graph.parameter_count / 1e9:.2f} G | {len(graph):,} | {seconds:.1f} "
            f"| {peak:.2f} |", flush=True,
        )


def main() -> None:
    """Print one of the two tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    from timm_networks import TIMM  # beside this file, and so found where it is the program

    every = [*CONFIGS, *TIMM]
    parser.add_argument("--networks", nargs="+", choices=every, metavar="NAME", help="some of them")
    parser.add_argument("--timm", action="store_true", help="timm's networks")
    parser.add_argument("--large", action="store_true", help="networks of today's sizes, without weights")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    options = parser.parse_args()
    folder = Path(__file__).resolve().parent  # whose kernels.py transformers would take for the package kernels
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != folder]
    large(options.json) if options.large else small(options.networks or list(TIMM if options.timm else CONFIGS), options.json)


if __name__ == "__main__":
    main()
