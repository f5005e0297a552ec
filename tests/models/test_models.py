"""Every network: published sizes, recognisable names, the same training under any strategy."""

from __future__ import annotations

from random import Random
from time import process_time
from typing import Any

import numpy as np
import pytest
from fast_and_slow import fast_among
from language_model import random_strategy, undivided

from taskflow.models import MODELS, build, find
from taskflow.rules import SGD, Adam
from taskflow.runtime.executor import Executor
from taskflow.training.data.synthetic import random_feeds

# Counts: torchvision's alexnet, inception_v3 (aux_logits=False) and resnet101; LeCun et al.'s LeNet with full connections
# between its convolutions; the others from their layers' sizes.
LSTM = 4 * 1024 * (1024 + 1024 + 2)
COUNTS = {
    "AlexNet": 61_100_840,
    "Inception-v3": 23_834_568,
    "ResNet-101": 44_549_160,
    "LeNet": 61_706,
    "MLP": 784 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 + 10,
    "RNNTC": 20_000 * 1024 + 4 * LSTM + 2 * 1024 + 2,
    "RNNLM": 10_000 * 2048 + 2 * 4 * 2048 * (2 * 2048 + 2) + 2049 * 10_000,
    "RNNLM-2": 10_000 * 2048 + 2 * 4 * 2048 * (2 * 2048 + 2) + 2049 * 10_000,
    # Two embeddings, four layers of LSTM, attention's two matrices, and the scores' with bias.
    "NMT": 2 * 32_000 * 1024 + 4 * LSTM + 3 * 1024 * 1024 + 1025 * 32_000,
    # Vaswani et al.'s table 3 says 65 million for the base model.
    "Transformer": 37_000 * 512 + 6 * (4 * 513 * 512 + 2 * 512 * 2048 + 2560 + 2 * 1024)
    + 6 * (8 * 513 * 512 + 2 * 512 * 2048 + 2560 + 3 * 1024),
    "GPT-2": 124_439_808,  # of the published weights, in which the last layer is the embedding
    # Embedding and positions, and of each layer four matrices of attention, two of the feed-forward layer, their biases and two
    # normalisations.
    "GPT-3": (51_200 + 2048) * 12_288 + 96 * (12 * 12_288**2 + 13 * 12_288) + 2 * 12_288,
    # Embedding and scores, and of each layer queries and outputs, keys and values, three matrices and two normalisations.
    "Llama": 2 * 128_256 * 4096 + 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336 + 2 * 4096) + 4096,
    # As Llama, but of each layer eight times three matrices, and the router's.
    "Mixtral": 2 * 32_000 * 4096 + 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 8 * 3 * 4096 * 14_336 + 8 * 4096 + 2 * 4096) + 4096,
    # Published without the second word's layer and 58 x 256 corrections of the router, which are not trained by gradients.
    "DeepSeek": 671_026_419_200 - 58 * 256,
    # The embedding; of each layer four matrices of attention and two normalisations; in turn two matrices of a feed-forward layer,
    # and those of 2,048 experts with the router's; a normalisation.
    "MoE": 64_000 * 1024 + 36 * (4 * 1024 * 2048 + 4 * 1024) + 18 * 2 * 1024 * 8192
    + 18 * (2048 * 2 * 1024 * 8192 + 2048 * 1024) + 2 * 1024,
}
# Of the published sizes: in thousands of millions as their papers have them, or exactly where weights are published.
SIZES = {
    "GPT-2": {"medium": 354_823_168, "large": 774_030_080, "XL": 1_557_611_200},
    "GPT-3": {"1.7B": 1.7, "3.6B": 3.6, "7.5B": 7.5, "18.4B": 18.4, "22B": 22, "39.1B": 39.1, "76.1B": 76.1, "145.6B": 145.6,
              "175B": 175, "310.1B": 310.1, "530B": 529.6, "1T": 1008.0},
    "Llama": {"8B": 8_030_261_248, "70B": 70_553_706_496, "405B": 405_853_388_800},
    "Mixtral": {"8x7B": 46_702_792_704, "8x22B": 140_620_634_112},
    "DeepSeek": {"V2-Lite": 15_706_484_224, "V3": 671_026_419_200 - 58 * 256},
    # GShard's numbers are rounded, and those of its networks, which translate.
    "MoE": {"600B": "600", "200B": "200", "150B": "150", "50B": "50", "37B": "37", "12.5B": "12.5"},
}


def test_every_model_has_a_published_count() -> None:
    assert set(COUNTS) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_parameter_counts(name: str) -> None:
    graph = build(name)
    assert graph.parameter_count == COUNTS[name]
    assert graph.name == name


def test_a_small_network_has_the_name_by_which_it_was_asked_for() -> None:
    """Unless its builder knows better: a small ResNet-101 has 17 layers."""
    names = {name: build(name, 4, preset="small").name for name in ("GPT-2", "GPT-3", "Llama", "ResNet-101")}
    assert list(names.values()) == ["GPT-2", "GPT-3", "Llama", "ResNet-17"]


@pytest.mark.parametrize(("name", "operator", "shape"), [
    ("AlexNet", "features.12", (256, 256, 6, 6)),
    ("AlexNet", "classifier.6", (256, 1000)),
    ("ResNet-101", "maxpool", (64, 64, 56, 56)),
    ("ResNet-101", "layer3.22.relu3", (64, 1024, 14, 14)),
    ("ResNet-101", "layer4.2.relu3", (64, 2048, 7, 7)),
    ("Inception-v3", "maxpool2", (64, 192, 35, 35)),
    ("Inception-v3", "Mixed_5d.concat", (64, 288, 35, 35)),
    ("Inception-v3", "Mixed_6e.concat", (64, 768, 17, 17)),
    ("Inception-v3", "Mixed_7c.concat", (64, 2048, 8, 8)),
    ("RNNTC", "lstm3.3", (64, 10, 1024)),
    ("NMT", "attention.3.scores", (64, 10, 40)),
    ("NMT", "softmax.3", (64, 10, 32_000)),
    ("Transformer", "decoder.layers.5.multihead_attn.scores", (64, 8, 40, 40)),
    ("GPT-2", "h.11.attn.softmax", (8, 12, 1024, 1024)),
    ("GPT-2", "lm_head", (8, 1024, 50_257)),
    ("Llama", "layers.31.self_attn.attention", (1, 8192, 32, 128)),
    ("Llama", "layers.31.self_attn.k_rotary", (1, 8192, 8, 128)),
    ("Mixtral", "layers.31.block_sparse_moe.experts.w2", (1, 8192, 2, 4096)),
    ("MoE", "layers.35.moe.dispatch", (2, 2048, 4, 1024)),
    ("LeNet", "pool2", (64, 16, 5, 5)),
])
def test_shapes(name: str, operator: str, shape: tuple[int, ...]) -> None:
    assert build(name).node(operator).outputs[0].shape == shape


def test_flops_are_the_published_ones() -> None:
    """Multiply-adds of one image's forward pass: torchvision says 0.71, 7.80 and 5.71 thousand million."""
    for name, wanted in (("AlexNet", 0.714e9), ("ResNet-101", 7.80e9), ("Inception-v3", 5.71e9)):
        graph = build(name, batch=1)
        kinds = ("conv2d", "linear")
        flops = sum(n.operator.flops(n.specs, n.space) for n in graph if n.operator.kind in kinds)
        assert flops / 2 == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize(("name", "parameters"), [
    ("AlexNet", ["features.0.weight", "features.10.bias", "classifier.6.weight"]),
    ("ResNet-101", ["conv1.weight", "bn1.bias", "layer1.0.downsample.0.weight", "layer4.2.conv3.weight", "fc.bias"]),
    ("Inception-v3", ["Conv2d_1a_3x3.conv.weight", "Mixed_6c.branch7x7dbl_5.bn.weight", "Mixed_7b.branch3x3_2b.conv.weight"]),
    ("NMT", ["encoder.embedding.weight", "encoder.lstm1.weight_hh", "decoder.lstm0.bias_ih",
             "attention.linear_in.weight", "softmax.bias"]),
    ("Transformer", ["embedding.weight", "encoder.layers.0.self_attn.q_proj.weight",
                     "decoder.layers.5.multihead_attn.out_proj.bias", "decoder.layers.5.linear2.weight"]),
    ("GPT-2", ["wte.weight", "wpe", "h.0.ln_1.weight", "h.11.attn.q_proj.weight", "h.11.mlp.c_proj.bias", "ln_f.bias"]),
    ("Llama", ["embed_tokens.weight", "layers.0.self_attn.k_proj.weight", "layers.31.mlp.down_proj.weight",
               "layers.31.post_attention_layernorm.weight", "norm.weight", "lm_head.weight"]),
    ("Mixtral", ["layers.0.block_sparse_moe.gate.weight", "layers.31.block_sparse_moe.experts.w1.weight"]),
    ("MoE", ["embedding.weight", "layers.0.ffn.wi.weight", "layers.1.moe.wg.weight", "layers.35.moe.wo.weight", "norm.bias"]),
])
def test_parameters_have_names_that_a_user_recognises(name: str, parameters: list[str]) -> None:
    assert set(parameters) <= {p.name for p in build(name).parameters}


@pytest.mark.parametrize("name", ["RNNLM", "RNNTC", "NMT"])
def test_parameter_names_do_not_depend_on_how_steps_are_cut(name: str) -> None:
    whole = [(p.name, p.shape) for p in build(name, steps_per_operator=40).parameters]
    for steps in (1, 7, 10):
        assert [(p.name, p.shape) for p in build(name, steps_per_operator=steps).parameters] == whole


def test_names_and_sizes_of_models() -> None:
    assert find("inception_v3")[0] == find("InceptionV3")[0] == "Inception-v3"
    assert find("rnnlm-2")[0] == "RNNLM-2"
    assert build("alexnet", devices=16).node("images").outputs[0].shape == (4096, 3, 224, 224)
    assert build("nmt", devices=64).node("source").outputs[0].shape == (4096, 40)
    assert build("resnet101", batch=2, devices=16, image=64).node("images").outputs[0].shape == (2, 3, 64, 64)
    assert build("RNNLM-2").node("lstm1.1").outputs[0].shape == (64, 1, 2048)
    sized = build("llama", devices=2, preset="8b")  # as --size has it
    assert (sized.name, sized.node("tokens").outputs[0].shape) == ("Llama-8B", (2, 8192))
    with pytest.raises(ValueError, match="no model 'VGG'; there are AlexNet, Inception-v3"):
        build("VGG")
    with pytest.raises(ValueError, match="NMT: no size 'width'; there are batch, steps, vocabulary"):
        build("NMT", width=3)
    with pytest.raises(ValueError, match="no size 'tiny'; there are paper, small"):
        build("NMT", preset="tiny")


@pytest.mark.parametrize(("name", "size"), [(name, size) for name, sizes in SIZES.items() for size in sizes])
def test_named_sizes_have_the_published_counts(name: str, size: str) -> None:
    graph, count = build(f"{name}-{size}".lower()), SIZES[name][size]
    assert graph.name == f"{name}-{size}"
    if isinstance(count, str):
        assert graph.parameter_count / 1e9 == pytest.approx(float(count), rel=0.065)
    elif isinstance(count, int) and count > 1000:
        assert graph.parameter_count == count
    else:
        digits = 1 if isinstance(count, float) else 0
        assert graph.parameter_count / 1e9 == pytest.approx(count, abs=0.5 * 10**-digits)


def test_every_named_size_has_a_count() -> None:
    assert {name: set(model.sizes) for name, model in MODELS.items() if model.sizes} == {n: set(s) for n, s in SIZES.items()}
    with pytest.raises(ValueError, match=r"no model 'llama-9b'; there are .*Llama \(8B, 70B, 405B\)"):
        build("llama-9b")


@pytest.mark.parametrize("name", ["Inception-v3", "ResNet-101", "NMT", "Transformer", "GPT-2", "Llama", "Mixtral", "MoE",
                                  "DeepSeek"])
def test_building_the_largest_graphs_takes_well_under_a_second(name: str) -> None:
    build(name, preset="small")  # what is imported for the first time does not count
    taken = []
    for _ in range(3):  # into one may fall a collection of all that other tests have left, which takes half a second
        start = process_time()  # of this process alone, whatever else runs
        graph = build(name, devices=1024)
        graph.fingerprint()
        taken.append(process_time() - start)
    assert min(taken) < 0.5


@pytest.mark.parametrize("name", fast_among(MODELS, set(MODELS) - {"Inception-v3", "GPT-3"}))
def test_losses_are_the_same_under_any_strategy(name: str) -> None:
    sizes: dict[str, Any] = {"blocks": (1, 1, 1, 1)} if name == "ResNet-101" else {}
    losses: list[list[float | None]] = []
    for seed in (0, 1) if name == "Inception-v3" else (0, 1, 2):
        graph = build(name, preset="small", dtype="float64", **sizes)
        strategy = random_strategy(graph, 4, Random(seed)) if seed else undivided(graph)
        run = Executor(graph, strategy, SGD(0.05), seed=5)
        losses.append([run.train(random_feeds(graph, step)) for step in range(2)])
    assert losses[0][0] != losses[0][1]
    np.testing.assert_allclose(losses[1:], [losses[0]] * len(losses[1:]), rtol=1e-10)


def test_gpt_with_attention_in_one_kernel_is_the_same_network() -> None:
    """The same weights by name, and the same losses under any strategy; it keeps no scores of all pairs of words."""
    losses = []
    for fused, seed in ((False, 0), (True, 0), (True, 1)):
        graph = build("GPT-2", preset="small", dtype="float64", dropout=0.0, fused=fused)
        strategy = random_strategy(graph, 4, Random(seed)) if seed else undivided(graph)
        run = Executor(graph, strategy, SGD(0.05), seed=5)
        losses.append([run.train(random_feeds(graph, step)) for step in range(3)])
        assert ("softmax" in {node.operator.kind for node in graph}) is not fused
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-12)
    names = [{parameter.name for parameter in build("GPT-2", preset="small", fused=one).parameters} for one in (False, True)]
    assert names[0] == names[1]


@pytest.mark.parametrize("name", [
    "AlexNet", "ResNet-101", "RNNTC", "NMT", "LeNet", "MLP", "Transformer", "GPT-2", "Llama", "Mixtral", "MoE", "DeepSeek",
])  # fmt: skip
def test_the_small_presets_learn(name: str) -> None:
    """The loss of a batch that is seen again and again falls."""
    graph = build(name, preset="small")
    run = Executor(graph, undivided(graph), Adam(0.02), seed=1, clip_norm=1.0)
    batch = random_feeds(graph, 0)
    losses = [run.train(batch) for _ in range(40)]
    assert min(losses[-5:]) < 0.7 * losses[0]


def test_experts_by_einsums_and_in_groups_of_any_size_train_alike() -> None:
    """The printed einsums give what indices give; other groups are other numbers, and must divide the words."""
    losses = {}
    for options in ({}, {"einsums": True}, {"group": 12}, {"group": 8}):
        graph = build("MoE", preset="small", dtype="float64", **options)
        run = Executor(graph, undivided(graph), SGD(0.05), seed=5)
        if options.get("einsums"):
            start = {p.name: value for p, value in zip(graph.parameters, run.parameters().values())}
            first = Executor(whole := build("MoE", preset="small", dtype="float64"), undivided(whole), SGD(0.05), seed=5)
            theirs = first.parameters()
            run.set_parameters({
                name: theirs[name] if name in theirs else theirs[f"{name}.weight"].swapaxes(1, 2).copy() for name in start
            })
        losses[str(options)] = [run.train(random_feeds(graph, step)) for step in range(4)]
    printed, rows = losses["{'einsums': True}"], losses["{}"]
    np.testing.assert_allclose(printed, rows, rtol=1e-11)
    assert losses["{'group': 12}"] != rows != losses["{'group': 8}"]
    with pytest.raises(ValueError, match="group must divide the 4 x 6 words of a batch, got 7; take 6 or 8"):
        build("MoE", preset="small", group=7)
