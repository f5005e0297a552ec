"""Networks of Hugging Face that read images beside words: features of an image stand where the data have its token."""

from __future__ import annotations

import importlib.util
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among

import taskflow
from taskflow.models.pytorch import from_torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
from taskflow.models.huggingface import from_config, module_of  # noqa: E402
from taskflow.models.huggingface.patches import attention_by_spans  # noqa: E402
from taskflow.models.pytorch import recipes  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
_file = Path(__file__).parents[2] / "benchmarks" / "imports.py"
_spec = importlib.util.spec_from_file_location("benchmark_of_imports", _file)
assert _spec is not None and _spec.loader is not None
imports = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(imports)
CLOSE = 1e-5  # of the loss; of the largest gradient: float32, sums in another order
SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
WORDS = SIZES | dict(num_key_value_heads=2, vocab_size=200)
TOWER = SIZES | dict(model_type="siglip_vision_model", image_size=32, patch_size=8)
GEMMA = WORDS | dict(head_dim=8)
CONFIGS: dict[str, dict[str, Any]] = {
    "LLaVA": dict(
        model_type="llava", architectures=["LlavaForConditionalGeneration"], image_token_index=199,
        text_config=WORDS | dict(model_type="llama"), vision_config=SIZES | dict(
            model_type="clip_vision_model", image_size=16, patch_size=8,
        ),
    ),
    "Gemma 3": dict(
        model_type="gemma3", architectures=["Gemma3ForConditionalGeneration"], image_token_index=199, mm_tokens_per_image=4,
        text_config=GEMMA | dict(model_type="gemma3_text"), vision_config=TOWER,
    ),
    "PaliGemma": dict(
        model_type="paligemma", architectures=["PaliGemmaForConditionalGeneration"], image_token_index=199, projection_dim=32,
        text_config=GEMMA | dict(model_type="gemma2"), vision_config=TOWER | dict(projection_dim=32),
    ),
}
QWEN2_VL: dict[str, Any] = dict(
    model_type="qwen2_vl", architectures=["Qwen2VLForConditionalGeneration"],
    text_config=WORDS | dict(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}),
    vision_config=dict(depth=1, embed_dim=16, num_heads=2, hidden_size=32, patch_size=14),
)


@pytest.mark.parametrize("name", fast_among(CONFIGS, ["PaliGemma"]))
def test_loss_and_gradients_are_those_of_pytorch(name: str) -> None:
    graph, _, loss, gradients, _ = imports.compared(CONFIGS[name])
    assert loss <= CLOSE and gradients <= CLOSE
    kinds = [node.operator.kind for node in graph]
    assert kinds.count("masked_scatter") == 1 and "compare" not in kinds and "split" not in kinds


@pytest.mark.parametrize("name", fast_among(
    [name for name in imports.CONFIGS if name.endswith(", images")], ["Qwen3-VL, images", "Llama 4, images"],
))
def test_towers_for_patches_compute_what_pytorch_does_image_by_image(name: str) -> None:
    """Llama 4's own forward asks for what its text part does not return: None stands for it. CLIP's, SAM's and BLIP's towers
    are alone, with no words to put patches among."""
    graph, _, loss, gradients, _ = imports.compared(name)
    assert loss <= CLOSE and gradients <= CLOSE
    put = ("text_config" in imports.CONFIGS[name]) + name.startswith("Qwen3-VL")
    assert [node.operator.kind for node in graph].count("masked_scatter") == put


BESIDE = [
    "Mistral 3, images", "Pixtral, images", "SmolVLM, images", "Idefics 3, images", "Llama 3.2 Vision", "Qwen2-Audio", "Voxtral",
]


@pytest.mark.parametrize("name", fast_among(BESIDE, ["Mistral 3, images", "Llama 3.2 Vision", "Qwen2-Audio"]))
def test_what_stands_beside_words_is_computed_as_the_class_itself_does(name: str) -> None:
    """Given the sizes, tiles and lengths that are planned. Tokens of one sample stand elsewhere than those of the next."""
    module, keywords = imports.network(name)
    own = imports.without_dropout(imports.CONFIGS[name])
    for part in (module, own):
        for path, parameter in part.named_parameters():
            parameter.data += 0.3 if path.endswith("gate") else 0.0  # at 0 no token would see the image
    numbers = torch.Generator().manual_seed(0)
    given = {key: torch.randn(value.shape, generator=numbers) for key, value in keywords.items() if value.is_floating_point()}
    given["input_ids"] = torch.randint(6, 200, (4, 32), generator=numbers)
    tokens = {"Mistral 3, images": 4, "Pixtral, images": 16, "Llama 3.2 Vision": 1, "Qwen2-Audio": 16, "Voxtral": 8}.get(name, 4)
    for sample, row in enumerate(given["input_ids"]):
        row[sample + 1 : sample + 1 + tokens] = 5
    more = {
        "Mistral 3, images": dict(image_sizes=torch.full((4, 2), 32)), "Pixtral, images": dict(image_sizes=torch.full((4, 2), 32)),
        "Llama 3.2 Vision": dict(aspect_ratio_ids=torch.full((4, 1), 2), aspect_ratio_mask=torch.ones(4, 1, 2, dtype=torch.long)),
        "Qwen2-Audio": dict(feature_attention_mask=torch.ones(4, 64, dtype=torch.long)),
    }.get(name, {})
    torch.testing.assert_close(module(**given).logits, own(**given, **more).logits)


@pytest.mark.parametrize("name", fast_among(["Llama 3.2 Vision", "Qwen2-Audio", "Voxtral"], ["Qwen2-Audio"]))
def test_tiles_and_sounds_beside_words_compute_what_pytorch_does(name: str) -> None:
    graph, _, loss, gradients, _ = imports.compared(name)
    assert loss <= CLOSE and gradients <= CLOSE
    assert [node.operator.kind for node in graph].count("masked_scatter") == (name != "Llama 3.2 Vision")


def test_what_is_the_same_for_all_images_is_there_once() -> None:
    few, many = (from_config(imports.CONFIGS["Qwen2.5-VL, images"], count, 24) for count in (2, 6))
    sizes = [[math.prod(node.outputs[0].shape) for node in graph if node.operator.kind == "constant"] for graph in (few, many)]
    assert sizes[0] == sizes[1] and len(few) == len(many)


@pytest.mark.parametrize("plan,devices", fast_among([("d2 mb1", 2), ("mb2", 1), ("p2 mb2", 2)], [("d2 mb1", 2)]))
def test_patches_of_images_go_through_in_micro_batches(plan: str, devices: int) -> None:
    graph = from_config(imports.CONFIGS["Qwen3-VL, images"], 4, 24)
    tokens = np.random.default_rng(0).integers(9, 200, (4, 24))
    tokens[:, 4:20] = 5
    feeds = {"input_ids": tokens, "labels": np.roll(tokens, -1, 1)}
    feeds["pixel_values"] = np.random.default_rng(1).standard_normal((4, 64, 4096)).astype(np.float32)
    losses = [
        [run.train(feeds) for run in [taskflow.Executor(graph, taskflow.choose(way, graph, taskflow.host(n))[0], taskflow.SGD(0.1))]
         for _ in range(2)] for way, n in ((plan, devices), ("data", 1))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_spans_of_several_lengths_are_refused() -> None:
    x = torch.zeros(1, 2, 6, 4)
    with pytest.raises(ValueError, match=r"divides its patches into spans of \[2, 4\]; all must be equally long"):
        attention_by_spans(None, x, x, x, cu_seq_lens_q=torch.tensor([0, 2, 6]))


def test_a_result_says_how_many_tokens_are_an_images() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from_config(CONFIGS["Gemma 3"], 2, 24)
    said = [str(one.message) for one in caught]
    assert any("one image a sample is planned, for 4 of its 24 tokens: those that are 199 in the data" in one for one in said)
    assert any("tokens of an image see those before them" in one for one in said)


def test_samples_shorter_than_an_image_are_refused() -> None:
    with pytest.raises(ValueError, match=r"an image or a sound of 16 rows among 12 tokens of a sample.*hf:CONFIG.json#text"):
        from_config(CONFIGS["PaliGemma"], 2, 12)


def test_verification_puts_an_images_tokens_into_each_sample() -> None:
    assert len(from_config(CONFIGS["LLaVA"], 3, 9, verify=True)) > 50


@pytest.mark.parametrize("verify", [False, True])
def test_an_images_token_beyond_the_vocabulary_is_refused(verify: bool) -> None:
    with pytest.raises(ValueError, match=r"integers are 200, and .*embed_tokens.* below 200: take .*image_token_index"):
        from_config(CONFIGS["LLaVA"] | dict(image_token_index=200), 2, 24, verify=verify)


def test_a_sample_with_more_tokens_than_rows_ends_the_step() -> None:
    """PyTorch would take another sample's features."""
    module = module_of(CONFIGS["LLaVA"], weights=True)
    tokens = torch.full((2, 8), 5)
    graph = from_torch(module, keywords={"input_ids": tokens, "pixel_values": torch.zeros(2, 3, 16, 16)}, verify=False)
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0], taskflow.SGD(lr=0.1))
    feeds = {"input_ids": np.full((2, 8), 5), "pixel_values": np.zeros((2, 3, 16, 16), np.float32), "labels": np.ones((2, 8), int)}
    feeds["input_ids"][0, 2:7] = 199
    with pytest.raises(Exception, match="the token 199 at most 4 times, once for each row, got 5"):
        run.train(feeds)


def test_positions_in_three_parts_are_a_rule_where_their_table_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = from_config(QWEN2_VL, 2, 24, part="text", verify=True)
    monkeypatch.setattr(recipes, "LARGE", 64)
    large = from_config(QWEN2_VL, 2, 24, part="text", verify=True)
    for graph in (plain, large):
        kinds = [node.operator.kind for node in graph]
        assert kinds.count("rotary") == 4 and "constant" not in kinds
    rates = [[node.operator.rates for node in graph if node.operator.kind == "rotary"] for graph in (plain, large)]
    np.testing.assert_allclose(rates[0], rates[1])
