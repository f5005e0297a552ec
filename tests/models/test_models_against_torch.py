"""Small presets train as PyTorch implementations of the same networks from the same weights do."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from language_model import random_strategy, undivided
from test_models import feeds

from taskflow.graph import OperatorGraph
from taskflow.models import build, find
from taskflow.rules import SGD
from taskflow.runtime.executor import Executor

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test TORCH=1")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.torch
torch.set_num_threads(1)  # small arrays; more threads only get in the way of one another


class AlexNet(nn.Module):
    """Krizhevsky's one-tower network with torchvision's layer names."""

    def __init__(self) -> None:
        super().__init__()
        c = find("AlexNet")[1].small
        one, two, three, four, five = c.channels
        relu, pool = nn.ReLU(), nn.MaxPool2d(3, 2)
        self.features = nn.Sequential(
            nn.Conv2d(3, one, 11, 4, 2), relu, pool, nn.Conv2d(one, two, 5, padding=2), relu, pool,
            nn.Conv2d(two, three, 3, padding=1), relu, nn.Conv2d(three, four, 3, padding=1), relu,
            nn.Conv2d(four, five, 3, padding=1), relu, pool,
        )
        self.pool = nn.AdaptiveAvgPool2d(c.pooled)
        nothing = nn.Identity()
        self.classifier = nn.Sequential(
            nothing, nn.Linear(five * c.pooled**2, c.hidden), relu, nothing, nn.Linear(c.hidden, c.hidden), relu,
            nn.Linear(c.hidden, c.classes),
        )

    def forward(self, images, labels):
        return F.cross_entropy(self.classifier(self.pool(self.features(images)).flatten(1)), labels)


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = nn.Identity()
        if stride > 1 or channels != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        y = torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))
        return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet(nn.Module):
    """Two stages of it; the others differ in size only."""

    def __init__(self) -> None:
        super().__init__()
        c = find("ResNet-101")[1].small
        self.conv1, self.bn1 = nn.Conv2d(3, c.width, 7, 2, 3, bias=False), nn.BatchNorm2d(c.width)
        channels = c.width
        for stage, count in enumerate(c.blocks):
            width, blocks = c.width << stage, []
            for block in range(count):
                blocks.append(Bottleneck(channels, width, 2 if stage and not block else 1))
                channels = 4 * width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, c.classes)

    def forward(self, images, labels):
        x = F.max_pool2d(torch.relu(self.bn1(self.conv1(images))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return F.cross_entropy(self.fc(x.mean((2, 3))), labels)


class RNNTC(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        c = find("RNNTC")[1].small
        self.embedding = nn.Embedding(c.vocabulary, c.hidden)
        self.lstm = nn.LSTM(c.hidden, c.hidden, c.layers, batch_first=True)
        self.softmax = nn.Linear(c.hidden, c.classes)

    def forward(self, tokens, labels):
        y, _ = self.lstm(self.embedding(tokens))
        return F.cross_entropy(self.softmax(y[:, -1]), labels)


class NMT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        c = find("NMT")[1].small
        self.encoder, self.decoder, self.attention = nn.Module(), nn.Module(), nn.Module()
        for side in (self.encoder, self.decoder):
            side.embedding = nn.Embedding(c.vocabulary, c.hidden)
            side.lstm = nn.LSTM(c.hidden, c.hidden, c.layers, batch_first=True)
        self.attention.linear_in = nn.Linear(c.hidden, c.hidden, bias=False)
        self.attention.linear_out = nn.Linear(2 * c.hidden, c.hidden, bias=False)
        self.softmax = nn.Linear(c.hidden, c.vocabulary)

    def forward(self, source, target, labels):
        memory, state = self.encoder.lstm(self.encoder.embedding(source))
        y, _ = self.decoder.lstm(self.decoder.embedding(target), state)
        weights = torch.softmax(self.attention.linear_in(y) @ memory.transpose(1, 2), 2)
        y = torch.tanh(self.attention.linear_out(torch.cat((weights @ memory, y), 2)))
        return F.cross_entropy(self.softmax(y).flatten(0, 1), labels.flatten())


class Attend(nn.MultiheadAttention):
    """torch's attention under our parameter names."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, batch_first=True)
        for name in "qkv":
            setattr(self, f"{name}_proj", nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)
        del self.in_proj_weight, self.in_proj_bias

    def forward(self, x, memory, mask=None):
        projections = (self.q_proj, self.k_proj, self.v_proj)
        y, _ = F.multi_head_attention_forward(
            *(t.transpose(0, 1) for t in (x, memory, memory)), self.embed_dim, self.num_heads,
            torch.cat([p.weight for p in projections]), torch.cat([p.bias for p in projections]), None, None, False, 0.0,
            self.out_proj.weight, self.out_proj.bias, attn_mask=mask,
        )
        return self.norm(x + y.transpose(0, 1))


class TransformerLayer(nn.Module):
    def __init__(self, c, decoder: bool) -> None:
        super().__init__()
        self.self_attn = Attend(c.hidden, c.heads)
        if decoder:
            self.multihead_attn = Attend(c.hidden, c.heads)
        self.linear1, self.linear2 = nn.Linear(c.hidden, c.inner), nn.Linear(c.inner, c.hidden)
        self.feed_forward = nn.Module()
        self.feed_forward.norm = nn.LayerNorm(c.hidden)

    def forward(self, x, memory=None, mask=None):
        x = self.self_attn(x, x, mask)
        if memory is not None:
            x = self.multihead_attn(x, memory)
        return self.feed_forward.norm(x + self.linear2(torch.relu(self.linear1(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        c = find("Transformer")[1].small
        self.config = c
        self.embedding = nn.Embedding(c.vocabulary, c.hidden)
        self.encoder, self.decoder = nn.Module(), nn.Module()
        self.encoder.layers = nn.ModuleList(TransformerLayer(c, False) for _ in range(c.layers))
        self.decoder.layers = nn.ModuleList(TransformerLayer(c, True) for _ in range(c.layers))

    def start(self, words):
        c = self.config
        rates = 10000.0 ** (-torch.arange(0, c.hidden, 2, dtype=torch.float64) / c.hidden)
        angles = torch.arange(words.shape[1], dtype=torch.float64)[:, None] * rates
        waves = torch.stack((torch.sin(angles), torch.cos(angles)), 2).flatten(1)
        return self.embedding(words) * c.hidden**0.5 + waves

    def forward(self, source, target, labels):
        x, y = self.start(source), self.start(target)
        for layer in self.encoder.layers:
            x = layer(x)
        mask = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
        for layer in self.decoder.layers:
            y = layer(y, x, mask)
        scores = (y @ self.embedding.weight.T).flatten(0, 1)
        return F.cross_entropy(scores, labels.flatten(), label_smoothing=self.config.label_smoothing)


NETWORKS = {"AlexNet": AlexNet, "ResNet-101": ResNet, "RNNTC": RNNTC, "NMT": NMT, "Transformer": Transformer}


def _names(ours: dict[str, np.ndarray], name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Our parameters under torch's names; an LSTM's layers and gates are numbered otherwise there."""
    for key, value in ours.items():
        layer, _, kind = key.rpartition(".")
        if layer.rstrip("0123456789").endswith("lstm"):
            stack = layer.rstrip("0123456789")
            yield f"{stack}.{kind}_l{layer[len(stack):]}", value.reshape(-1, *value.shape[2:])
        else:
            yield key, value


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", NETWORKS)
def test_small_presets_train_as_torch_does(name: str, seed: int) -> None:
    sizes = {} if name == "ResNet-101" else {"dropout": 0.0}
    graph: OperatorGraph = build(name, preset="small", dtype="float64", **sizes)
    strategy = random_strategy(graph, 4, Random(seed)) if seed else undivided(graph)
    run = Executor(graph, strategy, SGD(0.05, momentum=0.9), seed=seed)
    net = NETWORKS[name]().double()
    start = {key: torch.from_numpy(value.copy()) for key, value in _names(run.parameters(), name)}
    assert set(start) == {key for key, _ in net.named_parameters()}
    net.load_state_dict(start, strict=False)
    update = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(4):
        batch = feeds(name, graph, step)
        loss = net(**{key: torch.from_numpy(value) for key, value in batch.items()})
        update.zero_grad()
        loss.backward()
        update.step()
        assert run.train(batch) == pytest.approx(loss.item(), rel=1e-9)
    ours = dict(_names(run.parameters(), name))
    for key, value in net.named_parameters():
        np.testing.assert_allclose(ours[key], value.detach().numpy(), rtol=1e-7, atol=1e-9, err_msg=key)
