"""What an import leaves out or replaces is said in one line, or refused; what it plans is the module's."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from taskflow.cli.main import main
from taskflow.models import ImportNote
from taskflow.models.pytorch import from_torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


class Parts(nn.Module):
    """A head that the loss depends on, one that it does not, a layer that nobody calls, and a table that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.aux = nn.Linear(4, 4), nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))
        self.uncalled, self.table = nn.Linear(3, 3), nn.Parameter(torch.zeros(3))

    def forward(self, x: Any) -> Any:
        h = self.body(x)
        return {"logits": self.head(h), "aux_loss": self.aux(h).sum()}


class Saving(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.b, self.how = nn.Linear(4, 4), nn.Linear(4, 3), how

    def forward(self, x: Any) -> Any:
        if self.how == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.b(self.a(x).relu())
        if self.how == "recompute":
            return self.b(checkpoint(lambda y: self.a(y).relu(), x, use_reentrant=False))
        with torch.autograd.graph.save_on_cpu():
            return self.b(self.a(x).relu())


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return self.a(x) * self.scale


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.steps += 1
        return self.a(x)


class Smoothed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.loss = nn.Linear(4, 4), nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, x: Any, y: Any) -> Any:
        return self.loss(self.a(x), y)


class OneTensor(nn.Module):
    """A parameter of another type by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4, dtype=torch.float16))

    def forward(self, x: Any) -> Any:
        return self.a(x) * self.scale


def notes(build: Any) -> list[str]:
    """What is said while something is imported."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build()
    return [str(w.message) for w in caught if w.category is ImportNote]


@pytest.mark.parametrize("module, said", [
    (Parts, ["the loss is cross_entropy alone, without aux_loss, which forward returns",
             "no loss depends on aux (16 parameters), uncalled (12 parameters), table (3 parameters): in the graph, but"]),
    (lambda: Saving("recompute"), ["forward recomputes activations (torch.utils.checkpoint), which is left out"]),
    (lambda: Saving("offload"), ["forward keeps activations on the CPU, which is left out"]),
    (lambda: Saving("autocast"), ["forward uses autocast (bfloat16), which is left out: a module in 16 bits"]),
    (Frozen, []),
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.BatchNorm1d(4)), []),
])
def test_modules(module: Any, said: list[str]) -> None:
    found = notes(lambda: from_torch(module(), (2, 4)))
    assert len(found) == len(said) and all(part in text for part, text in zip(said, found)), found


def test_what_a_loss_of_ones_own_depends_on_is_not_said_to_be_idle() -> None:
    import taskflow

    found = notes(lambda: from_torch(
        Parts(), (2, 4), loss=lambda y: taskflow.add(taskflow.sum(y["logits"]), y["aux_loss"])
    ))
    assert len(found) == 1 and "aux" not in found[0] and "uncalled (12 parameters), table (3 parameters)" in found[0]


@pytest.mark.parametrize("module, examples, why", [
    (lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).half()), ((2, 4),), "1: weight is float16, but the first parameter is"),
    (OneTensor, ((2, 4),), "a: weight is float32, but the first parameter is float16"),
    (Counting, ((2, 4),), "changes the buffer steps"),
    (Smoothed, ((2, 4), torch.zeros(2, dtype=torch.long)), "Smoothed returns a single number, .*loss=lambda result: result"),
])
def test_modules_that_are_refused(module: Any, examples: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_torch(module(), *examples)


def test_an_import_under_autocast_is_refused() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match="stands under autocast from without"):
        from_torch(nn.Sequential(nn.Linear(4, 4)), (2, 4))


# ---- configs of Hugging Face -------------------------------------------------------------------------------------------------

SIZES: dict[str, Any] = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=64,
    max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
LLAMA = SIZES | dict(model_type="llama", architectures=["LlamaForCausalLM"])
MIXTRAL = SIZES | dict(model_type="mixtral", architectures=["MixtralForCausalLM"], num_local_experts=4, num_experts_per_tok=2)
PHIMOE = SIZES | dict(model_type="phimoe", architectures=["PhimoeForCausalLM"], num_local_experts=4, input_jitter_noise=0.01)
BERT = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"} | dict(model_type="bert")
MBART = dict(
    model_type="mbart", architectures=["MBartForConditionalGeneration"], d_model=32, encoder_layers=1, decoder_layers=1,
    encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=64, pad_token_id=0,
    bos_token_id=1, eos_token_id=2, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
)
HUBERT = dict(
    model_type="hubert", architectures=["HubertForSequenceClassification"], hidden_size=32, intermediate_size=64,
    num_hidden_layers=2, num_attention_heads=4, layerdrop=0.1, conv_dim=[16] * 3, conv_stride=[5, 4, 4], conv_kernel=[10, 4, 4],
    num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
)
PARAKEET = dict(
    model_type="parakeet_ctc", architectures=["ParakeetForCTC"], vocab_size=64, encoder_config=dict(
        num_mel_bins=32, subsampling_conv_channels=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, layerdrop=0.1,
    ),
)
AST = dict(
    model_type="audio-spectrogram-transformer", architectures=["ASTForAudioClassification"], max_length=64, num_mel_bins=32,
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
)
MOONSHINE = dict(
    model_type="moonshine", architectures=["MoonshineForConditionalGeneration"], hidden_size=32, intermediate_size=64,
    encoder_num_hidden_layers=2, decoder_num_hidden_layers=2, encoder_num_attention_heads=4, decoder_num_attention_heads=4,
    max_position_embeddings=64, vocab_size=64, bos_token_id=1, eos_token_id=2,
)
BLIP = dict(model_type="blip", architectures=["BlipForConditionalGeneration"])
QWEN2_VL = SIZES | dict(
    model_type="qwen2_vl", architectures=["Qwen2VLForConditionalGeneration"],
    vision_config=dict(depth=2, embed_dim=16, num_heads=2, hidden_size=32, patch_size=14),
    rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]},
)
QWEN2_AUDIO = dict(
    model_type="qwen2_audio", architectures=["Qwen2AudioForConditionalGeneration"], text_config=SIZES | dict(model_type="qwen2"),
    audio_config=dict(d_model=32, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=64),
)
GRANITE_SPEECH = dict(
    model_type="granite_speech", architectures=["GraniteSpeechForConditionalGeneration"],
    text_config=SIZES | dict(model_type="granite"), encoder_config=dict(hidden_dim=32, num_layers=1, num_heads=2),
    projector_config=dict(
        model_type="blip_2_qformer", hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        encoder_hidden_size=32,
    ),
)
LLAVA = dict(
    model_type="llava", architectures=["LlavaForConditionalGeneration"], image_token_index=63,
    text_config=LLAMA, vision_config=dict(
        model_type="clip_vision_model", hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        image_size=28, patch_size=14,
    ),
)


@pytest.fixture(scope="module")
def hf() -> Any:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
    from taskflow.models import huggingface

    return huggingface


@pytest.mark.parametrize("config, said", [
    (LLAMA, []),
    (LLAMA | dict(rope_scaling={"rope_type": "yarn", "factor": 2.0}, temperature=0.6, transformers_version="4.31.0"), []),
    (LLAMA | dict(torch_dtype="bfloat16"), []),
    (LLAMA | dict(torch_dtype="float8_e4m3fn"), ["the config says float8_e4m3fn; the network is planned in float32"]),
    (LLAMA | dict(quantization_config={"quant_method": "gptq", "bits": 4}), ["the config's quantization (gptq) is left out"]),
    (LLAMA | dict(gradient_checkpointing=True), ["gradient_checkpointing is left out"]),
    (LLAMA | dict(attn_implementation="flash_attention_2"), ["the config's attention is flash_attention_2; attention is"]),
    (LLAMA | dict(auto_map={"AutoModelForCausalLM": "x.Y"}), ["names code of its own (auto_map)"]),
    (LLAMA | dict(use_qk_norms=True), ["nothing in transformers' code of it reads the config's use_qk_norms: left out"]),
    (LLAMA | dict(architectures=["LLaMAForCausalLM"]), ["has no class LLaMAForCausalLM; LlamaForCausalLM, by its model_type,"]),
    (LLAMA | dict(architectures=["LLaMALMHeadModel"]), ["has no class LLaMALMHeadModel; LlamaForCausalLM, by its model_type,"]),
    (MBART | dict(encoder_layerdrop=0.05), ["the config's encoder_layerdrop (0.05), by which steps leave out layers, is not"]),
    (HUBERT, [
        "reads sounds; 160,000 numbers a sample", "the config's layerdrop (0.1), by which", "each step draws (apply_spec_augment)",
        "no loss depends on hubert.masked_spec_embed",
    ]),
    (MIXTRAL | dict(router_jitter_noise=0.1), ["noise of what its routers read (jitter_noise=0.1) is left out"]),
    (LLAMA | dict(model_type="my_llama"), ["has no model_type 'my_llama'; planned as 'llama', whose class the config names"]),
    (PHIMOE, ["(input_jitter_noise=0.01) is left out", "its routers (PhimoeTopKRouter) draw experts by chance in training"]),
    (MIXTRAL | dict(output_router_logits=True), ["the auxiliary loss of its router (router_aux_loss_coef=0.001) is left out"]),
])
def test_configs(config: dict[str, Any], said: list[str], hf: Any) -> None:
    found = notes(lambda: hf.from_config(config, 2, None if config is HUBERT else 16))
    assert len(found) == len(said) and all(part in text for part, text in zip(said, found)), found


@pytest.mark.parametrize("config, why", [
    (LLAMA | dict(rope_theta="silu"), "cannot be built: rope_theta must be a number, got 'silu'"),
    (LLAMA | dict(hidden_act="swishh"), "cannot be built: transformers has no hidden_act 'swishh'; did you mean swish"),
    (LLAMA | dict(rope_scaling={"rope_type": "foo", "factor": 2.0}), "transformers has no rope_type 'foo'"),
    (LLAMA | dict(architectures=["LlamaForNothing"]), "no class LlamaForNothing.* has no such head"),
    (BERT | dict(architectures=["BertForSequenceClassification"], num_labels=1), "regression; choose loss=mse_loss"),
    (BERT | dict(architectures=["BertForSequenceClassification"], problem_type="multi_label_classification"), "binary cross-"),
    (HUBERT | dict(architectures=["HubertForCTC"], vocab_size=32), "trained by CTC, a loss that there is not here; choose loss=ms"),
    (BLIP, "BlipForConditionalGeneration"),
    (QWEN2_VL, r"an image or a sound of 324 rows among 16 tokens of a sample; .* hf:CONFIG.json#text"),
    (QWEN2_AUDIO, r"a sound of 750 rows among 128 tokens of a sample; .* hf:CONFIG.json#text"),
    (GRANITE_SPEECH, r"encoder \([\d,]+ parameters, of its encoder_config\) would be left out. hf:CONFIG.json#text .* Granite"),
])
def test_configs_that_are_refused(config: dict[str, Any], why: str, hf: Any) -> None:
    steps = 16 if "vocab_size" in config and config["model_type"] not in ("hubert", "wavlm") else None
    with pytest.raises(ValueError, match=why) as error:
        hf.from_config(config, 2, steps)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("steps", [32, 96])
def test_tables_that_forward_chooses_by_the_number_of_tokens(steps: int, hf: Any) -> None:
    """Longrope: short factors up to so many tokens, long ones for more. The graph is verified beside the module."""
    rope = dict(rope_type="longrope", short_factor=[1.0] * 4, long_factor=[2.0] * 4, original_max_position_embeddings=64)
    graph = hf.from_config(LLAMA | dict(rope_scaling=rope, max_position_embeddings=128), 2, steps, verify=True)
    plain = hf.from_config(LLAMA | dict(max_position_embeddings=128), 2, steps)
    assert len(graph) == len(plain)


@pytest.mark.parametrize("said, dtype", [
    ({}, "float32"), ({"quantization_config": {"quant_method": "mxfp4"}}, "bfloat16"),
    ({"quantization_config": {"quant_method": "fp8"}, "dtype": "float16"}, "float16"),
])
def test_type_of_weights_that_are_quantised(said: dict[str, Any], dtype: str, hf: Any) -> None:
    assert str(hf.from_config(LLAMA | said, 2, 16).dtype) == dtype


def test_what_is_planned_right_needs_no_word(hf: Any) -> None:
    """Dropout of attention, tied tables, a cap of the scores: as the module computes them."""
    graph = hf.from_config(LLAMA | dict(attention_dropout=0.1), 2, 16)
    assert [n.operator.dropout for n in graph if n.operator.kind == "flash_attention"] == [0.1, 0.1]
    plain, tied = (hf.from_config(LLAMA | dict(tie_word_embeddings=tie), 2, 16).parameter_count for tie in (False, True))
    assert plain - tied == 64 * 32
    gemma = SIZES | dict(model_type="gemma2", architectures=["Gemma2ForCausalLM"], head_dim=8)
    kinds = [node.operator.kind for node in hf.from_config(gemma, 2, 16)]
    assert kinds.count("tanh") == 3, "of the scores of two layers and of the logits"


@pytest.mark.parametrize("config, gone", [(QWEN2_VL, "model.visual"), (LLAVA, "model.multi_modal_projector")])
def test_a_text_part_is_planned_by_name(config: dict[str, Any], gone: str, hf: Any) -> None:
    made: list[Any] = []
    (said,) = notes(lambda: made.append(hf.from_config(config, 2, 16, part="text")))
    whole = hf.module_of(config)
    kind = type(whole).__name__
    assert f"hf: {kind}: its text part alone is planned" in said and gone in said
    text = sum(p.numel() for name, p in whole.named_parameters() if "vis" not in name and "projector" not in name)
    assert made[0].parameter_count == text and made[0].name == f"{kind}-text"


def test_another_part_and_a_part_of_a_text_network_are_refused(hf: Any) -> None:
    with pytest.raises(ValueError, match="has no part 'image'; there is text"):
        hf.from_config(QWEN2_VL, 2, 16, part="image")
    with pytest.raises(ValueError, match="reads tokens alone; leave out #text"):
        hf.from_config(LLAMA, 2, 16, part="text")


def test_the_command_line_names_what_is_planned(hf: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_VL))
    where = ("-m", "a100", "-n", "2", "--batch", "2", "--set", "steps=16")
    refused = CliRunner().invoke(main, ["simulate", f"hf:{tmp_path}", *where])
    (said,) = (line for line in refused.stderr.splitlines() if not line.endswith("reading the network ..."))  # if that takes long
    assert refused.exit_code == 2 and "hf:CONFIG.json#text" in said
    plan = str(tmp_path / "plan.json")
    done = CliRunner().invoke(main, ["search", f"hf:{tmp_path}#text", *where, "--budget", "5p", "--out", plan])
    assert done.exit_code == 0 and done.stdout.startswith("Qwen2VLForConditionalGeneration-text: "), done.output
    assert any("its text part alone is planned" in line and "without model.visual (" in line for line in done.stderr.splitlines())
    again = CliRunner().invoke(main, ["explain", plan])
    assert again.exit_code == 0, again.output


def test_the_command_line_says_what_a_function_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)\n"
        "    def forward(self, x):\n        return self.a(x)\n"
        "def net():\n    return Net(), (2, 4)\n"
        "def graph():\n    import taskflow\n    return taskflow.from_torch(Net(), (2, 4))\n"
    )
    for function in ("net", "graph"):
        done = CliRunner().invoke(main, ["simulate", f"{tmp_path}/mine.py:{function}", "-m", "a100", "-n", "2"])
        assert "from_torch: Net: no loss depends on b (20 parameters): in the graph, but never trained" in done.stderr.splitlines()


@pytest.mark.parametrize("config, steps, loss, shapes, said", [
    (PARAKEET, None, "mse_loss", [(2, 1000, 32), (2, 125, 64)], [
        "reads sounds; 1,000 spectra a sample are planned (--set steps= says others)", "the config's layerdrop (0.1), by which",
    ]),
    (PARAKEET, 64, "mse_loss", [(2, 64, 32), (2, 8, 64)], ["the config's layerdrop (0.1), by which"]),
    (AST, None, None, [(2, 64, 32), (2,)], []),
    (MOONSHINE, None, None, [(2, 160_000), (2, 64), (2, 64)], ["reads sounds; 160,000 numbers a sample are planned"]),
    (MOONSHINE, 16, None, [(2, 160_000), (2, 16), (2, 16)], []),
])
def test_inputs_of_sounds(
    config: dict[str, Any], steps: int | None, loss: str | None, shapes: list[tuple[int, ...]], said: list[str], hf: Any
) -> None:
    graphs: list[Any] = []
    found = notes(lambda: graphs.append(hf.from_config(config, 2, steps, loss=loss)))
    assert [node.outputs[0].shape for node in graphs[0] if node.operator.kind == "input"] == shapes
    assert len(found) == len(said) and all(part in text for part, text in zip(said, found)), found
