"""Hugging Face's own classes from configurations: a step's loss and gradients are PyTorch's; without weights any size imports."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fast_and_slow import fast_among

import taskflow
from taskflow.cli.main import main
from taskflow.models.pytorch import from_torch, weights_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
from taskflow.models.huggingface import examples_for, from_config, module_of  # noqa: E402
from taskflow.models.pytorch.meta import NumbersWantedError, on_meta, require_numbers  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
_file = Path(__file__).parents[2] / "benchmarks" / "imports.py"
_spec = importlib.util.spec_from_file_location("benchmark_of_imports", _file)
assert _spec is not None and _spec.loader is not None
imports = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(imports)
CLOSE = 1e-5  # of the loss; of the largest gradient: float32, sums in another order
FAST = ("Mistral, window 8", "Mixtral", "ViT", "T5", "DeepSeek V2", "Llama 4, chunks of 8", "GPT-OSS", "RoBERTa", "BLOOM")
NETWORKS = (*FAST, "GPT-2", "Llama", "Qwen2", "BERT")
LLAMA = imports.CONFIGS["Llama"]


@pytest.mark.parametrize("name", fast_among(NETWORKS, FAST))
def test_loss_and_gradients_are_those_of_pytorch(name: str) -> None:
    _, _, loss, gradients, _ = imports.compared(imports.CONFIGS[name])
    assert loss <= CLOSE and gradients <= CLOSE


@pytest.mark.parametrize("name", fast_among(["Llama", "Mistral, window 8", "T5"], ["Mistral, window 8"]))
def test_masks_that_come_from_inputs_compute_what_pytorch_computes(name: str) -> None:
    graph, _, loss, gradients, _ = imports.compared(imports.CONFIGS[name], masked=True)
    assert loss <= CLOSE and gradients <= CLOSE
    assert "attention_mask" in {node.name for node in graph}


@pytest.mark.parametrize("changes, ruled", [
    (dict(num_experts_per_tok=2), True), (dict(attention_chunk_size=7, no_rope_layers=[1, 1]), False),
    (dict(use_qk_norm=False, attn_temperature_tuning=False, num_experts_per_tok=4), True),
])
def test_other_configs_of_llama_4_compute_what_pytorch_computes(changes: dict[str, Any], ruled: bool) -> None:
    """Several experts a token, chunks that do not divide the steps, all experts for all tokens."""
    graph, _, loss, gradients, _ = imports.compared(imports.CONFIGS["Llama 4, chunks of 8"] | changes)
    assert loss <= CLOSE and gradients <= CLOSE
    assert [n.operator.kind for n in graph].count("flash_attention") == (2 if ruled else 0)


@pytest.mark.parametrize("name", [name for name in imports.CONFIGS if name not in NETWORKS])
@pytest.mark.slow
def test_the_other_networks_of_the_table_are_equal(name: str) -> None:
    _, _, loss, gradients, rounding = imports.compared(imports.CONFIGS[name])
    # It begins with samples exactly at pixels, where their slopes jump: PyTorch's own gradients depend on the rounding.
    assert loss <= CLOSE and gradients <= (2 * rounding if name == "Deformable DETR" else CLOSE)


@pytest.mark.parametrize("name, constants", [("Llama", 0), ("GPT-2", 1), ("T5", 4), ("Mistral, window 8", 0), ("OPT", 1)])
def test_what_follows_from_constants_is_computed_at_the_import(name: str, constants: int) -> None:
    """Positions, masks, buckets of relative positions: each is one array, which all layers share, and no operator works on
    constants alone, or for nothing. Rotary positions, the causal mask and windows are rules."""
    graph = from_config(imports.CONFIGS[name], 4, 32)
    fixed = {node.number for node in graph if node.operator.kind == "constant"}
    assert len(fixed) == constants
    assert not [n.name for n in graph if n.inputs and not n.parameters and all(t.node in fixed for t in n.inputs)]
    used = {t.node for t in graph.losses}
    for node in reversed(list(graph)):
        if node.number in used:
            used |= {t.node for t in node.inputs}
    assert not [node.name for node in graph if node.number not in used]


def test_a_query_whose_keys_are_all_masked_gets_what_pytorch_gives_it() -> None:
    """Left padding: the first tokens of a sample see nothing."""
    module = module_of(LLAMA, weights=True).eval()
    tokens, mask = torch.randint(3, 200, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    mask[1, :3] = 0
    graph = from_torch(module, tokens, mask, verify=False)
    scores = next(node.inputs[0] for node in graph if node.name == "loss")
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(2))[0], taskflow.SGD(lr=0.1))
    from taskflow.checkpoint import load_weights

    load_weights(run, weights_of(module))
    feeds = {"input_ids": tokens.numpy(), "attention_mask": mask.numpy(), "labels": tokens.numpy()}
    ours = run.evaluate_with(feeds, [scores])[1][scores.name]
    with torch.no_grad():
        theirs = module(input_ids=tokens, attention_mask=mask).logits.numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


# ---- without weights -------------------------------------------------------------------------------------------------


def test_a_network_of_many_parameters_takes_no_memory_for_them() -> None:
    wide = LLAMA | dict(hidden_size=8192, intermediate_size=28672, num_attention_heads=64, num_key_value_heads=8)
    module = module_of(wide, num_hidden_layers=3)
    assert {p.device.type for p in module.parameters()} == {"meta"}
    assert {b.device.type for b in module.buffers()} == {"cpu"}, "tables of positions have numbers"
    _, examples = examples_for(module, 4, 16)
    graph = from_torch(module, keywords=examples, verify=False)
    assert graph.parameter_count == sum(p.numel() for p in module.parameters()) > 2e9
    kinds = [node.operator.kind for node in graph]
    assert kinds.count("flash_attention") == 3, "grouped queries are not repeated, scores not kept"


def test_without_and_with_weights_the_graph_is_the_same() -> None:
    with_weights = from_torch(module_of(LLAMA, weights=True), torch.zeros(4, 16, dtype=torch.long), verify=False)
    without = from_config(LLAMA, 4, 16)
    assert [(n.name, n.operator.kind, n.outputs[0].spec) for n in without] == [
        (n.name, n.operator.kind, n.outputs[0].spec) for n in with_weights
    ]


def test_verification_runs_where_it_is_asked_for() -> None:
    assert len(from_config(LLAMA, 2, 8, verify=True, num_hidden_layers=1)) > 20


def test_a_module_made_without_numbers_is_not_asked_for_them() -> None:
    with on_meta():
        assert torch.nn.Linear(3, 4).weight.is_meta
        with pytest.raises(NumbersWantedError):
            require_numbers()
    assert not torch.nn.Linear(3, 4).weight.is_meta
    require_numbers()


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config, changes, why", [
    ({"hidden_size": 8}, {}, 'no "model_type"'),
    ({"model_type": "llamma"}, {}, "no model_type 'llamma'"),
    (LLAMA, {"hiden_size": 8}, "no entry hiden_size"),
    (LLAMA | {"architectures": ["LlamaForNothing"]}, {}, "no class LlamaForNothing"),
    (LLAMA | {"architectures": ["LlamaModel"]}, {}, "features, not scores"),
    (dict(model_type="clip_text_model"), {}, "no head for"),
])
def test_configs_that_say_no_network_are_refused(config: dict[str, Any], changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_config(config, 2, 8, **changes)


def test_fewer_layers_are_the_first_ones_of_lists_that_say_each() -> None:
    """GPT-OSS, Qwen3, Gemma 3 and others list the kind of every layer in their config."""
    from taskflow.models.notes import notes_kept

    config = imports.CONFIGS["GPT-OSS"] | {"num_hidden_layers": 4}
    config["layer_types"] = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    with notes_kept() as notes:
        module = module_of(config, num_hidden_layers=2)
    assert [module.config.layer_types, len(module.model.layers)] == [["full_attention", "sliding_attention"], 2]
    assert notes == ["hf: 2 of 4 layers: layer_types of the first 2"]
    with pytest.raises(ValueError, match=r"layer_types = .* in the config: .num_hidden_layers. \(6\) must be equal"):
        module_of(config, num_hidden_layers=6)


def test_a_config_that_transformers_has_written_with_infinities(tmp_path: Any) -> None:
    """JSON has none, so that it writes ``{"__float__": "Infinity"}``: of every Mamba 2."""
    from transformers import Mamba2Config

    limits = (0.0, float("inf"))
    Mamba2Config(
        hidden_size=16, num_hidden_layers=1, num_heads=4, head_dim=8, state_size=8, n_groups=1, vocab_size=32, chunk_size=4,
        time_step_limit=limits, architectures=["Mamba2ForCausalLM"],
    ).save_pretrained(tmp_path)
    assert "__float__" in (tmp_path / "config.json").read_text()
    assert from_config(tmp_path, 2, 8).parameter_count > 0


def test_what_is_not_understood_is_named_with_its_line() -> None:
    why = r"decides by one .*: choose by torch.where, .* \(line \d+ of modeling_fsmt.py: `if not padding_mask.any\(\):`\)"
    own = dict(
        model_type="fsmt", architectures=["FSMTForConditionalGeneration"], langs=["en", "de"], src_vocab_size=211,
        tgt_vocab_size=211,
    )
    with pytest.raises(ValueError, match=why):
        from_config(imports.NETWORKS.BOTH | own, 2, 8)


def test_videos_are_planned_with_their_frames() -> None:
    own = dict(model_type="timesformer", architectures=["TimesformerForVideoClassification"], num_frames=4, patch_size=16)
    graph = from_config(imports.NETWORKS.WIDTH | own, 2, image_size=32, verify=True)
    assert graph.node("pixel_values").outputs[0].shape == (2, 4, 3, 32, 32)


def test_control_flow_that_depends_on_numbers_is_refused_with_its_line() -> None:
    class Chooses(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.body(x)
            if y.sum() > 0:
                return y
            return -y

    with pytest.raises(ValueError, match=r"line \d+ of test_huggingface.py: `if y.sum\(\) > 0:`"):
        from_torch(Chooses(), (2, 4))


# ---- the command line ------------------------------------------------------------------------------------------------

MODULES = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(4, width), nn.Linear(width, 3)
    def forward(self, x, scale=None):
        y = self.b(self.a(x).relu())
        return y if scale is None else y * scale

def net(width: int = 8, batch: int = 16):
    return Net(width), (batch, 4)

def named(batch: int = 16):
    return Net(5), {"x": (batch, 4), "scale": (batch, 1)}

def alone():
    return Net(5)

def seen():
    made = Net(5)
    assert made.a.weight.is_meta
    return made, (4, 4)

def graph():
    import taskflow
    made = Net(5)
    return taskflow.from_torch(made, (4, 4))
"""


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result


def test_the_config_says_the_type_and_dtype_another(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA | {"torch_dtype": "bfloat16"}))
    common = ("simulate", f"hf:{config}", "-m", "h100", "-n", "2", "--batch", "4")
    assert "101,056 parameters, bfloat16" in run(*common).output
    assert "101,056 parameters, float16" in run(*common, "--dtype", "fp16").output
    assert "101,056 parameters, float32" in run(*common, "--dtype", "fp32").output


def test_a_config_is_a_model_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    plan = tmp_path / "plan.json"
    done = run(
        "search", f"hf:{tmp_path}", "--batch", "8", "--set", "steps=16", "--set", "num_hidden_layers=1", "-m", "a100", "-n", "2",
        "--budget", "50p", "--out", str(plan),
    )
    assert "LlamaForCausalLM: " in done.stdout and "not verified" in done.stderr
    assert "model.layers.0.self_attn.q_proj" in plan.read_text() and "layers.1" not in plan.read_text()
    assert "; rule: adamw; " in done.stdout and '"rule": "adamw"' in plan.read_text(), "as such networks are trained"
    assert "A step takes" in run("explain", str(plan), "--quiet").stdout, "the plan's file says which network it is of"
    assert "not verified" not in run(
        "simulate", f"hf:{tmp_path}", "--batch", "2", "--set", "steps=8", "--set", "verify=True", "-n", "1", "-m", "a100"
    ).stderr


@pytest.mark.parametrize("function, options, nodes", [
    ("net", ("--batch", "4", "--set", "width=6"), ["x", "a", "relu", "b", "labels", "loss"]),
    ("net", ("--set", "loss=mse_loss"), ["x", "a", "relu", "b", "targets", "loss"]),
    ("named", ("--batch", "4"), ["x", "scale", "a", "relu", "b", "mul", "labels", "loss"]),
    ("seen", (), ["x", "a", "relu", "b", "labels", "loss"]),
    ("graph", (), ["x", "a", "relu", "b", "labels", "loss"]),
])
def test_a_function_that_returns_a_module_is_a_model(
    tmp_path: Path, function: str, options: tuple[str, ...], nodes: list[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MODULES)
    plan = tmp_path / "plan.json"
    run("search", f"{file}:{function}", *options, "-m", "a100", "-n", "2", "--budget", "20p", "--out", str(plan), "-q")
    assert list(json.loads(plan.read_text())["operators"]) == nodes


@pytest.mark.parametrize("arguments, why", [
    (("hf:nowhere.json",), "there is no file nowhere.json"),
    (("hf:nowhere.json", "--size", "small"), "--size small is for built-in networks"),
    (("{file}:alone",), "returned a Net alone; return (module, example, ...)"),
    (("{file}:net", "--set", "verify=maybe"), "must be True or False"),
])
def test_mistakes_are_named(tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MODULES)
    done = run("simulate", *(a.format(file=file) for a in arguments), "-m", "a100", "-n", "2", code=2)
    assert why in done.stderr


@pytest.mark.parametrize("plan", ["d2 mb1", "t2"])
def test_a_decoder_s_loss_is_transformers_own_with_its_shift_and_its_ignored_labels(plan: str) -> None:
    """A loss over the next tokens, of which those of a prompt and of padding are -100; transformers adds one at the end."""
    module = module_of(LLAMA, weights=True).train()
    tokens = torch.randint(3, 200, (4, 8))
    labels = tokens.clone()
    labels[0, :7], labels[1, :3], labels[2, 5:], labels[3] = -100, -100, -100, -100
    graph = from_torch(module, tokens, verify=False)
    run = taskflow.Executor(graph, taskflow.choose(plan, graph, taskflow.host(2))[0], taskflow.SGD(lr=0.1))
    from taskflow.checkpoint import load_weights

    load_weights(run, weights_of(module))
    following = np.pad(labels.numpy()[:, 1:], ((0, 0), (0, 1)), constant_values=-100)
    for _ in range(2):
        theirs = module(input_ids=tokens, labels=labels).loss
        assert run.train({"input_ids": tokens.numpy(), "labels": following}) == pytest.approx(theirs.item(), rel=CLOSE)
        module.zero_grad()
        theirs.backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.1 * parameter.grad
