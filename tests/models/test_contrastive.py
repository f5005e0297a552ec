"""CLIP and SigLIP whole: scores of all samples with all are right under every cut, and plans with micro-batches are refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import taskflow
from taskflow.checkpoint import load_weights
from taskflow.export.across import across_samples
from taskflow.export.export import exported
from taskflow.models.pytorch import from_torch, weights_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'soap-taskflow[hf]'")
from taskflow.models.huggingface import from_config, module_of  # noqa: E402
from taskflow.models.huggingface.contrastive import own_loss  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
CLIP: dict[str, Any] = dict(
    model_type="clip", architectures=["CLIPModel"], projection_dim=24,
    vision_config=SIZES | dict(image_size=16, patch_size=8),
    text_config=SIZES | dict(vocab_size=200, max_position_embeddings=12, eos_token_id=199),
)
SIGLIP = CLIP | dict(model_type="siglip", architectures=["SiglipModel"])
OLD = CLIP | dict(text_config=CLIP["text_config"] | dict(eos_token_id=2))
SAMPLES, CLOSE = 4, 1e-5


def feeds() -> dict[str, Any]:
    """Words that end at different places, one of them twice, and images."""
    numbers = torch.Generator().manual_seed(3)
    tokens = torch.randint(3, 190, (SAMPLES, 12), generator=numbers)
    tokens[range(SAMPLES), [3, 7, 11, 5]] = 199
    tokens[0, 8:] = 199
    return {"input_ids": tokens, "pixel_values": torch.randn(SAMPLES, 3, 16, 16, generator=numbers)}


@pytest.mark.parametrize("config", [CLIP, OLD, SIGLIP], ids=["CLIP", "old", "SigLIP"])
@pytest.mark.parametrize("plan, count", [
    ("data", 1), ("data", 3), ("model", 2), ("t2 p1 d2 mb2", 4), ("t1 p1 d4 mb1 zero3", 4), ("t1 p2 d2 mb2 zero1", 4),
])
def test_loss_and_gradients_are_those_of_pytorch_under_every_plan(plan: str, count: int, config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module, given = module_of(config, weights=True), feeds()
    loss = module(**given, return_loss=True).loss
    loss.backward()
    graph = from_torch(module, keywords=given, loss=own_loss(module), verify=False)
    run = taskflow.Executor(graph, taskflow.choose(plan, graph, taskflow.host(count))[0], taskflow.SGD(lr=1.0))
    weights = weights_of(module)
    load_weights(run, weights)
    before = {name: np.array(weights[name]) for name in weights}
    assert run.train({name: value.numpy() for name, value in given.items()}) == pytest.approx(loss.item(), rel=CLOSE)
    after, trained = run.weights() or {}, [*module.parameters()]
    largest = max(float(p.grad.abs().max()) for p in trained if p.grad is not None)
    with torch.no_grad():
        for parameter in trained:
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    gradients = weights_of(module)  # under the names and in the parts that they have here
    for name, value in after.items():
        np.testing.assert_allclose(before[name] - value, gradients[name], atol=CLOSE * largest)


def test_micro_batches_are_refused() -> None:
    module = module_of(CLIP)
    graph = from_torch(module, keywords=feeds(), loss=own_loss(module), verify=False)
    with pytest.raises(ValueError, match="takes several of the 2 micro-batches"):
        taskflow.Executor(graph, taskflow.choose("t1 p1 d2 mb1", graph, taskflow.host(2))[0], taskflow.SGD(lr=1.0))


@pytest.mark.parametrize("config", [CLIP, SIGLIP], ids=["CLIP", "SigLIP"])
def test_the_front_door_takes_it_whole_and_says_what_its_loss_is(config: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = from_config(config, SAMPLES, verify=True)
    assert any("its loss compares all samples with one another; plans have no micro-batches" in str(one.message) for one in caught)
    assert [node.name for node in graph if node.operator.kind == "input"] == ["input_ids", "pixel_values"]
    assert graph.node("input_ids").outputs[0].shape == (SAMPLES, 12), "as many words as it has positions for"
    assert taskflow.search(graph, taskflow.load_machine("h100", 4), budget="200p").seconds > 0


def test_towers_whose_loss_is_not_known_are_refused_with_what_plans_each() -> None:
    with pytest.raises(ValueError, match=r"a loss that there is not here; plan a tower by itself.*'aimv2_vision_model'"):
        from_config(CLIP | dict(model_type="aimv2", architectures=["Aimv2Model"]), SAMPLES)


def test_an_export_that_would_compare_a_ranks_own_samples_alone_is_refused() -> None:
    module = module_of(CLIP)
    graph = from_torch(module, keywords=feeds(), loss=own_loss(module), verify=False)
    plans = {count: taskflow.choose("data", graph, taskflow.host(count))[0] for count in (1, 2)}
    with pytest.raises(ValueError, match="matmul compares all samples of a step with one another"):
        exported(graph, plans[2], "torch", "parallel.py")
    assert exported(graph, plans[2], "jax", "parallel.py").files
    towers = from_torch(module_of(CLIP), keywords=feeds(), loss=lambda made: taskflow.mean(made["text_embeds"]), verify=False)
    assert across_samples(graph) == across_samples(towers) == "matmul"
    vision = CLIP["vision_config"] | dict(model_type="clip_vision_model", architectures=["CLIPVisionModel"])
    tower = from_config(vision, SAMPLES, loss="mse_loss")
    assert not across_samples(tower)
