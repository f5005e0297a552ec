"""Which of Hugging Face's networks import, and whether they compute what PyTorch computes: loss and gradients of a step.

    python benchmarks/imports.py              # the table of docs/benchmarks.md
    python benchmarks/imports.py --large      # sizes that people train, without weights: seconds and memory

Configurations are written here; weights are random. Needs the extra hf.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from typing import Any, NamedTuple

import numpy as np

import taskflow
from taskflow.checkpoint import load_weights
from taskflow.models.huggingface import examples_for, from_config, module_of
from taskflow.models.pytorch import from_torch, weights_of

WIDTH = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
WORDS = dict(vocab_size=211, bos_token_id=1, eos_token_id=2, pad_token_id=0)
DECODER = WIDTH | WORDS | dict(num_key_value_heads=2, max_position_embeddings=128)
BATCH, STEPS = 4, 32
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
    their relative differences (the largest difference of any element, over the largest gradient), both in float32."""

    graph: taskflow.OperatorGraph
    seconds: float
    loss: float
    gradients: float


def compared(config: dict[str, Any], masked: bool = False, exported: bool = False) -> Compared:
    """Import a network, recorded or ``exported``, and train it a step beside PyTorch. ``masked``: with an attention_mask."""
    import torch

    module = without_dropout(config)
    numbers = torch.Generator().manual_seed(1)
    _, keywords = examples_for(module, BATCH, None if module.main_input_name == "pixel_values" else STEPS)
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
        graph = from_torch(torch.export.export(module, (), keywords)) if exported else from_torch(module, keywords=keywords)
    seconds = time.perf_counter() - start
    logits = module(**keywords).logits
    labels = torch.randint(logits.shape[-1], logits.shape[:-1], generator=numbers)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    loss.backward()
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0], taskflow.SGD(lr=1.0))
    before = weights_of(module)
    load_weights(run, before)
    feeds = {node.name: keywords[node.name].numpy() for node in graph if node.operator.kind == "input" and node.name in keywords}
    ours = run.train(feeds | {"labels": labels.numpy()})
    after = run.weights() or {}
    with torch.no_grad():
        old = {name: np.array(before[name]) for name in before}
        for parameter in module.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    theirs = weights_of(module)
    trained = {parameter.name for parameter in graph.parameters}
    largest = max(float(np.abs(theirs[name]).max()) for name in trained)
    off = max(float(np.abs((old[name] - after[name]) - theirs[name]).max()) for name in trained)
    return Compared(graph, seconds, abs(ours - loss.item()) / abs(loss.item()), off / largest)


def without_dropout(config: dict[str, Any]) -> Any:
    """The module of a config with random weights, in training, without dropout, whose random numbers are not PyTorch's."""
    import torch

    torch.manual_seed(0)
    module = module_of(config, weights=True).train()
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    for key in ("attention_dropout", "attn_pdrop", "dropout_rate", "attention_probs_dropout_prob"):
        for part in (module, *module.modules()):
            if hasattr(getattr(part, "config", None), key):
                setattr(part.config, key, 0.0)
    for part in module.modules():
        for key in ("attention_dropout", "dropout", "dropout_prob"):
            if isinstance(getattr(part, key, None), float):
                setattr(part, key, 0.0)
    return module


def small() -> None:
    """Print the table of networks, equal to PyTorch or refused."""
    print("| network | operators | parameters | import s | loss off by | gradients off by |\n|---|---|---|---|---|---|")
    rows = [(name, config, False) for name, config in CONFIGS.items()]
    rows += [(f"{name}, attention_mask", CONFIGS[name], True) for name in PADDED]
    for name, config, masked in rows:
        try:
            graph, seconds, loss, gradients = compared(config, masked)
            print(
                f"| {name} | {len(graph)} | {graph.parameter_count:,} | {seconds:.1f} | {loss:.1e} | {gradients:.1e} |", flush=True
            )
        except ValueError as error:
            print(f"| {name} | refused: {error} |", flush=True)


def large() -> None:
    """Print the table of sizes that people train."""
    print("| network | samples x tokens | parameters | operators | import s | memory of the process, GB |")
    print("|---|---|---|---|---|---|")
    for name, (config, batch, steps) in LARGE.items():
        start = time.perf_counter()
        graph = from_config(config, batch, steps or None)
        seconds, peak = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"| {name} | {batch} x {steps or 'image'} | {graph.parameter_count / 1e9:.2f} G | {len(graph):,} | {seconds:.1f} "
            f"| {peak:.2f} |", flush=True,
        )


def main() -> None:
    """Print one of the two tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--large", action="store_true", help="networks of today's sizes, without weights")
    large() if parser.parse_args().large else small()


if __name__ == "__main__":
    main()
