"""Selective state space networks of Hugging Face: the recurrence that they write as a loop is one operator, whatever the length."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taskflow
from taskflow.checkpoint import load_weights
from taskflow.mapper import OpConfig, Strategy
from taskflow.models.pytorch import from_torch, weights_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
from taskflow.models.huggingface import from_config, module_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
_file = Path(__file__).parents[2] / "benchmarks" / "imports.py"
_spec = importlib.util.spec_from_file_location("benchmark_of_imports", _file)
assert _spec is not None and _spec.loader is not None
imports = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(imports)
CLOSE = 1e-5  # of the loss; of the largest gradient: float32, sums in another order
SMALL = dict(hidden_size=32, num_hidden_layers=2, vocab_size=200, pad_token_id=0)
MAMBA: dict[str, Any] = dict(model_type="mamba", state_size=4, time_step_rank=3) | SMALL
CONFIGS: dict[str, dict[str, Any]] = {
    "Mamba": MAMBA,
    "Mamba with biases": MAMBA | dict(use_bias=True, use_conv_bias=False, conv_kernel=3, expand=1),
    "FalconMamba": MAMBA | dict(model_type="falcon_mamba", bos_token_id=0, eos_token_id=1),
    "Jamba": dict(
        model_type="jamba", attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4, mamba_dt_rank=3, intermediate_size=48,
        num_attention_heads=4, num_key_value_heads=2, num_experts=1, num_experts_per_tok=1,
    ) | SMALL,
}

WORDS: dict[str, Any] = dict(vocab_size=200, pad_token_id=0, bos_token_id=1, eos_token_id=2)
DELTA: dict[str, Any] = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=4,
    layer_types=["linear_attention", "full_attention"],
) | WORDS
BY_CHUNKS: dict[str, dict[str, Any]] = {
    "Qwen3-Next": dict(
        model_type="qwen3_next", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ) | DELTA,
    "Qwen3.5": dict(model_type="qwen3_5_text") | DELTA,
    "Mamba 2": dict(
        model_type="mamba2", state_size=16, num_heads=8, head_dim=8, n_groups=2, chunk_size=8, hidden_size=32, num_hidden_layers=2
    ) | WORDS,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_loss_and_gradients_are_those_of_pytorch(name: str) -> None:
    graph, _, loss, gradients, _ = imports.compared(CONFIGS[name])
    assert loss <= CLOSE and gradients <= CLOSE
    assert "selective_scan" in {node.operator.kind for node in graph}


def test_verification_finds_another_recurrence() -> None:
    assert len(from_config(MAMBA, 2, 6, verify=True)) > 20
    module = module_of(MAMBA, weights=True)
    mixer = module.backbone.layers[1].mixer
    plain = type(mixer).forward

    def forward(self: Any, hidden_states: Any, **options: Any) -> Any:
        return plain(self, hidden_states.flip(1), **options)

    type(mixer).forward = forward
    try:
        with pytest.raises(ValueError, match=r"does not compute what the module computes.*layers\.0\.mixer"):
            from_torch(module, torch.zeros(2, 6, dtype=torch.long))
    finally:
        type(mixer).forward = plain


def test_steps_cost_no_operators_and_channels_can_be_cut() -> None:
    """Two thousand steps at the size of 2.8B, without weights; and a cut of channels trains as one processor does."""
    large = from_config(MAMBA, 8, 2048, dtype="bfloat16", hidden_size=2560, num_hidden_layers=3, time_step_rank=160)
    assert len(large) < 60 and large.parameter_count > 1e8
    module, tokens = module_of(MAMBA, weights=True), np.arange(12).reshape(2, 6)
    losses = []
    for pieces in (1, 3):
        graph = from_torch(module, torch.zeros(2, 6, dtype=torch.long), verify=False)
        strategy = Strategy(3, {
            node.name: OpConfig(
                tuple(pieces if dim.name == "d" else 1 for dim in node.dims), tuple(range(pieces))
            ) if node.operator.kind in ("selective_scan", "causal_conv1d") else OpConfig((1,) * len(node.dims), (0,))
            for node in graph
        })
        run = taskflow.Executor(graph, strategy, taskflow.SGD(lr=0.5))
        load_weights(run, weights_of(module))
        losses.append([run.train({"input_ids": tokens, "labels": tokens}) for _ in range(4)])
    assert losses[0][3] < losses[0][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.parametrize("name", BY_CHUNKS)
def test_scans_by_chunks_are_one_operator_and_give_loss_and_gradients_of_pytorch(name: str) -> None:
    graph, _, loss, gradients, rounding = imports.compared(BY_CHUNKS[name])
    assert loss <= CLOSE and gradients <= max(CLOSE, 2 * rounding)
    kinds = [node.operator.kind for node in graph]
    assert kinds.count("linear_attention") == (2 if name == "Mamba 2" else 1)
    longer = from_config(BY_CHUNKS[name], 2, 512, dtype="bfloat16")
    assert [node.operator.kind for node in longer].count("linear_attention") == kinds.count("linear_attention")
    assert {str(x.dtype) for node in longer if node.operator.kind == "linear_attention" for x in node.inputs} == {"bfloat16"}


def test_heads_of_the_delta_rule_can_be_cut() -> None:
    module, tokens, losses = module_of(BY_CHUNKS["Qwen3-Next"], weights=True), np.arange(140).reshape(2, 70), []
    for pieces in (1, 4):
        graph = from_torch(module, torch.zeros(2, 70, dtype=torch.long), verify=False)
        strategy = Strategy(4, {
            node.name: OpConfig((1, pieces), tuple(range(pieces))) if node.operator.kind == "linear_attention"
            else OpConfig((1,) * len(node.dims), (0,)) for node in graph
        })
        run = taskflow.Executor(graph, strategy, taskflow.SGD(lr=0.5))
        load_weights(run, weights_of(module))
        losses.append([run.train({"input_ids": tokens, "labels": tokens}) for _ in range(3)])
    assert losses[0][2] < losses[0][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_a_function_of_a_known_name_that_computes_something_else_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.qwen3_5 import modeling_qwen3_5 as code

    def other(query: Any, key: Any, value: Any, g: Any, beta: Any, **_: Any) -> Any:
        return value * beta[..., None] * g[..., None], None

    monkeypatch.setattr(code, "torch_chunk_gated_delta_rule", other)
    graph = from_config(BY_CHUNKS["Qwen3.5"], 2, 8, verify=True)
    assert "linear_attention" not in {node.operator.kind for node in graph}
