"""torchvision's networks and ours give the same outputs from the same file of weights."""

from __future__ import annotations

from functools import partial
from random import Random

import numpy as np
import pytest
from language_model import random_strategy

import taskflow
from taskflow.checkpoint.weights import load_weights
from taskflow.models import build
from taskflow.models.torchvision_weights import of
from taskflow.runtime.executor import Executor

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
pytest.importorskip("safetensors", reason="safetensors is not installed: pip install 'soap-taskflow[test]'")
pytestmark = pytest.mark.torch


def randomised(net, dtype):
    """Running statistics and norms' weights that are not all alike, and outputs that are neither huge nor all alike."""
    generator = torch.Generator().manual_seed(1)
    net = net.to(dtype)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, torch.nn.Conv2d):  # so that what differs between images does not die out
                module.weight.normal_(0, (2 / module.weight[0].numel()) ** 0.5, generator=generator)
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.uniform_(-0.2, 0.2, generator=generator)
                module.running_var.uniform_(0.5, 1.5, generator=generator)
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.uniform_(-0.2, 0.2, generator=generator)
    return net.eval()


NETWORKS = {  # name -> (constructor, image, its arguments, our options)
    "AlexNet": ("alexnet", 224, {}, {}),
    "ResNet-101": ("resnet101", 64, {}, {}),
    "Inception-v3": ("inception_v3", 75, {"init_weights": False, "transform_input": True}, {"transform_input": True}),
}


@pytest.mark.parametrize(
    "name,dtype",
    [
        ("AlexNet", "float32"), ("ResNet-101", "float32"), ("Inception-v3", "float64"),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in (
            ("AlexNet", "float64"), ("ResNet-101", "float64"), ("Inception-v3", "float32"),
        )),
    ],
)
def test_outputs_from_a_file(name, dtype, torchvision, tmp_path):
    tolerance = {"float32": 1e-4, "float64": 1e-8}[dtype]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    constructor, image, arguments, options = NETWORKS[name]
    net = randomised(getattr(torchvision.models, constructor)(**arguments), getattr(torch, dtype))
    path = tmp_path / ("weights.pth" if dtype == "float64" else "weights.safetensors")
    if dtype == "float64":
        torch.save(net.state_dict(), path)
    else:
        from safetensors.torch import save_file

        save_file(net.state_dict(), str(path))
    images = torch.randn(2, 3, image, image, dtype=getattr(torch, dtype))
    with torch.no_grad():
        wanted = net(images).numpy()
    graph = build(name, batch=2, dtype=dtype, image=image)
    if name == "AlexNet" and dtype == "float32":
        strategy = random_strategy(graph, 3, Random(1))
    else:
        strategy, _ = taskflow.choose("expert" if dtype == "float64" else "data", graph, taskflow.host(2))
    run = Executor(graph, strategy)
    names = load_weights(run, path, rename=partial(of, **options))
    assert set(names) == {p.name for p in graph.parameters} | {n for n in names if ".running_" in n}
    found = run.predict({"images": images.numpy()})
    assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()
    assert np.abs(wanted[0] - wanted[1]).max() > 100 * tolerance * np.abs(wanted).max()  # the image matters


def test_transform_input_is_for_inception(torchvision, tmp_path):
    path = tmp_path / "alexnet.pth"
    torch.save({"features.0.weight": torch.zeros(1)}, path)
    graph = build("AlexNet", preset="small")
    run = Executor(graph, taskflow.choose("data", graph, taskflow.host(1))[0])
    with pytest.raises(ValueError, match=r"transform_input is Inception-v3's, which has Conv2d_1a_3x3\.conv\.weight"):
        load_weights(run, path, rename=partial(of, transform_input=True))
    with pytest.raises(ValueError, match=r"features\.0\.weight must be \(8, 3, 11, 11\), got \(1,\); features\.0\.bias is missing"):
        load_weights(run, path)
