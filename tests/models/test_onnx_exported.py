"""Files that PyTorch's exporter writes: every weight arrives, and predictions are the module's."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest

import taskflow
from taskflow.models.onnx import from_onnx

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'soap-taskflow[onnx]'")
torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
from torch import nn  # noqa: E402

pytestmark = pytest.mark.torch


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.b = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, eps=1e-2), nn.LeakyReLU(0.2))
        self.drop, self.fc = nn.Dropout(0.3), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = self.a(x)
        return self.fc(self.drop((x + self.b(x)).mean((2, 3))))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.qkv = nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, 24)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.words.weight

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        n, steps, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, steps, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(self.mlp(x + y.transpose(1, 2).reshape(n, steps, width)))


def strided() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2, ceil_mode=True), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 3), nn.Softmax(-1),
    )


IMAGES, TOKENS = torch.zeros(2, 3, 9, 9), torch.zeros(2, 5, dtype=torch.long)


@pytest.mark.parametrize("mode", ["EVAL", "PRESERVE"])
@pytest.mark.parametrize("make, example, opset", [
    (Residual, IMAGES, 13), (Residual, IMAGES, 20), (Decoder, TOKENS, 17), (Decoder, TOKENS, 20), (strided, IMAGES, 16),
])
def test_files_of_pytorchs_exporter_predict_what_the_module_predicts(make: Any, example: Any, opset: int, mode: str) -> None:
    torch.manual_seed(0)
    module, file, found = make(), io.BytesIO(), {}
    for buffer in module.buffers():  # statistics as training leaves them
        buffer.copy_(torch.rand(buffer.shape) + 0.5)
    module.train(mode == "PRESERVE")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (example,), file, dynamo=False, opset_version=opset, training=getattr(torch.onnx.TrainingMode, mode),
            input_names=["x"],
        )
        graph = from_onnx(onnx.load_from_string(file.getvalue()), loss=None, weights=found)
    run = taskflow.Executor(graph, taskflow.choose("data", graph, taskflow.host(2))[0])
    run.set_parameters(found)
    x = torch.randn(example.shape) if example.is_floating_point() else torch.randint(20, example.shape)
    with torch.no_grad():
        theirs = module.eval()(x).numpy()
    np.testing.assert_allclose(run.predict({"x": x.numpy()}), theirs, rtol=1e-4, atol=1e-6)
    if mode == "PRESERVE" and make is not Decoder:  # which the exporter writes with the table twice
        assert graph.parameter_count == sum(p.numel() for p in module.parameters())
