"""torchvision's own networks through from_torch: loss, every gradient, running statistics and outputs are PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import taskflow
from taskflow.checkpoint.weights import load_weights
from taskflow.models.pytorch import from_torch, weights_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
F = torch.nn.functional
pytestmark = pytest.mark.torch

# The smallest image after which the last maps have several positions: batch normalisation over two numbers magnifies rounding.
NETWORKS: dict[str, tuple[int, dict[str, Any]]] = {
    "squeezenet1_1": (33, {}),
    "mobilenet_v3_small": (64, {}),
    "shufflenet_v2_x0_5": (64, {}),
    "alexnet": (63, {}),
    "vgg11": (32, {}),
    "resnet18": (64, {}),
    "resnet50": (64, {}),
    "densenet121": (64, {}),
    "googlenet": (64, {"init_weights": False, "aux_logits": True}),
    "inception_v3": (107, {"init_weights": False, "aux_logits": False}),
    "inception_v3 with its second head": (299, {"init_weights": False, "aux_logits": True}),
    "mobilenet_v2": (64, {}),
    "efficientnet_b0": (64, {}),
    "mnasnet0_5": (64, {}),
    "regnet_y_400mf": (64, {}),
    "convnext_tiny": (32, {}),
    "vit_b_16": (32, {"image_size": 32}),
    "swin_t": (32, {}),
}
QUICK = 3  # so many of them are not slow
LR = 0.01
CLASSES = 10
BATCH = 3


def made(torchvision: Any, name: str) -> tuple[Any, int]:
    """A network in double precision that draws nothing at random, and its image's size."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size, options = NETWORKS[name]
    module = getattr(torchvision.models, name.split()[0])(num_classes=CLASSES, **options).double()
    for part in module.modules():
        if type(part).__name__ in ("Dropout", "StochasticDepth"):
            part.p = 0.0
    return module, size


def total(outputs: Any) -> Any:
    """The loss of all heads, as the papers weigh them, in taskflow's operators."""
    labels = taskflow.input(outputs[0].graph, (BATCH,), "int64", name="labels")
    result = taskflow.cross_entropy(outputs[0], labels, name="loss")
    for number, scores in enumerate(outputs[1:], 1):
        result = taskflow.add(result, taskflow.scale(taskflow.cross_entropy(scores, labels, name=f"loss{number}"), 0.4))
    return result


@pytest.mark.parametrize(
    "name", [*list(NETWORKS)[:QUICK], *(pytest.param(name, marks=pytest.mark.slow) for name in list(NETWORKS)[QUICK:])]
)
def test_a_step_is_pytorchs(name: str, torchvision: Any) -> None:
    module, size = made(torchvision, name)
    heads = bool(NETWORKS[name][1].get("aux_logits"))
    graph = from_torch(module, (BATCH, 3, size, size), loss=total if heads else "cross_entropy")
    assert graph.parameter_count == sum(p.numel() for p in module.parameters())
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0], taskflow.SGD(lr=LR))
    load_weights(run, weights_of(module))
    images = torch.randn(BATCH, 3, size, size, dtype=torch.float64)
    labels = torch.arange(BATCH) * 3
    before = run.parameters()
    feed = next(node.name for node in graph if node.operator.kind == "input" and node.name != "labels")
    loss = run.train({feed: images.numpy(), "labels": labels.numpy()})
    outputs = module(images)
    outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
    wanted = sum(weight * F.cross_entropy(scores, labels) for weight, scores in zip((1.0, 0.4, 0.4), outputs))
    wanted.backward()
    assert loss == pytest.approx(wanted.item(), rel=1e-11)
    ours = np.concatenate([((before[n] - a) / LR).ravel() for n, a in run.parameters().items()])
    theirs = gradients(module, before)
    assert np.linalg.norm(theirs) > 0
    assert np.linalg.norm(ours - theirs) <= 1e-8 * np.linalg.norm(theirs)

    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= LR * parameter.grad
        scores = module.eval()(images).numpy()
    found = run.predict({feed: images.numpy()}, graph.node("loss").inputs[0].name)  # with the running statistics
    assert np.abs(found - scores).max() <= 1e-7 * np.abs(scores).max()


def gradients(module: Any, names: Any) -> Any:
    """PyTorch's gradients as one vector, in the order of our names: read as weights are, from where the weights were."""
    for parameter in module.parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad, parameter.data = parameter.data.clone(), gradient.clone()
    stored = weights_of(module)
    vector = np.concatenate([np.array(stored[name]).ravel() for name in names])
    for parameter in module.parameters():
        parameter.grad, parameter.data = parameter.data.clone(), parameter.grad.clone()
    return vector


@pytest.mark.parametrize("name", ["vision transformer", "convnext"])
def test_networks_with_parameters_of_their_own_in_pieces(name: str, torchvision: Any) -> None:
    """Small ones under random strategies: class tokens, positions and layer scales are cut like all weights."""
    torch.manual_seed(0)
    if name == "convnext":
        from torchvision.models.convnext import CNBlockConfig, ConvNeXt

        module = ConvNeXt([CNBlockConfig(4, 8, 1), CNBlockConfig(8, None, 2)], num_classes=CLASSES, layer_scale=0.5)
    else:
        module = torchvision.models.VisionTransformer(16, 8, 2, 4, 8, 16, num_classes=CLASSES)
        torch.nn.init.normal_(module.heads.head.weight)  # torchvision starts it with zeros: the rest would have no gradient
    module = module.double()
    images, labels = torch.randn(4, 3, 16, 16, dtype=torch.float64), torch.arange(4)
    graph = from_torch(module, images)
    rule = torch.optim.SGD(module.parameters(), lr=0.1)
    runs = []
    for seed in range(3):
        strategy = taskflow.choose("random", graph, taskflow.host(3), seed=seed)[0]
        runs.append(taskflow.Executor(graph, strategy, taskflow.SGD(lr=0.1)))
        load_weights(runs[-1], weights_of(module))
    for _ in range(3):
        wanted = F.cross_entropy(module(images), labels)
        rule.zero_grad()
        wanted.backward()
        rule.step()
        for run in runs:
            assert run.train({"x": images.numpy(), "labels": labels.numpy()}) == pytest.approx(wanted.item(), rel=1e-9)
