"""Small networks of PyTorch for the tests of exported plans: a Llama, a GPT-2 with tied weights, a ResNet, a plain convolutional
network. Imported by the tests and by the program that torchrun starts (train_beside.py)."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import taskflow

BATCH, STEPS, WORDS = 8, 16, 64


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Any) -> Any:
        n, s, w = x.shape
        q, k, v = (f(x).view(n, s, self.heads, w // self.heads).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(n, s, w))


class Gated(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Any) -> Any:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.mlp = Attention(width, heads), Gated(width, 2 * width)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, width)
        self.blocks = nn.Sequential(*(LlamaBlock(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.norm(self.blocks(self.table(tokens))))


class GPTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        n, s, w = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(n, s, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, s, w)
        x = x + self.out(y)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """With the table of words as output layer, too."""

    def __init__(self, width: int = 32, heads: int = 4, depth: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(STEPS, width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.h = nn.ModuleList(GPTBlock(width, heads) for _ in range(depth))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, tokens: Any, positions: Any) -> Any:
        x = self.words(tokens) + self.places(positions)
        for block in self.h:
            x = block(x)
        return self.scores(self.norm(x))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(y)))


class ResNet(nn.Module):
    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.pool = nn.MaxPool2d(2)
        self.layers = nn.Sequential(Residual(channels), Residual(channels))
        self.head = nn.Linear(channels, WORDS)

    def forward(self, x: Any) -> Any:
        x = self.layers(self.pool(torch.relu(self.bn(self.stem(x)))))
        return self.head(x.mean((2, 3)))


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(256, 32), nn.Linear(32, WORDS)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


class Masked(nn.Module):
    """Attention with a mask that is an input, the same for all heads, and a learned bias of scores. One word is padding."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.table = heads, nn.Embedding(WORDS, width, padding_idx=0)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.bias, self.scores = nn.Parameter(torch.randn(1, 1, STEPS, STEPS)), nn.Linear(width, WORDS)

    def forward(self, tokens: Any, mask: Any) -> Any:
        x = self.table(tokens)
        n, s, w = x.shape
        q, k, v = (f(x).view(n, s, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=(1 - mask)[:, None, None, :] * -1e4 + self.bias)
        return self.scores(x + self.out(y.transpose(1, 2).reshape(n, s, w)))


class Mixtral(nn.Module):
    """Hugging Face's own class, of which each token takes two of four experts. Needs transformers."""

    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        from transformers import MixtralConfig, MixtralForCausalLM

        self.net = MixtralForCausalLM(MixtralConfig(
            vocab_size=WORDS, hidden_size=width, intermediate_size=3 * width // 2, num_hidden_layers=depth, num_attention_heads=4,
            num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=STEPS,
        ))  # fmt: skip

    def forward(self, tokens: Any) -> Any:
        return self.net(tokens, use_cache=False).logits


class GPT2(nn.Module):
    """Hugging Face's own class, whose linear layers have their weights as (inputs, outputs). Needs transformers."""

    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        self.net = GPT2LMHeadModel(GPT2Config(
            vocab_size=WORDS, n_embd=width, n_layer=depth, n_head=4, n_positions=STEPS, embd_pdrop=0.0, attn_pdrop=0.0,
            resid_pdrop=0.0,
        ))  # fmt: skip

    def forward(self, tokens: Any) -> Any:
        return self.net(tokens, use_cache=False).logits


class T5(nn.Module):
    """Hugging Face's own class: an encoder and a decoder, each with a table of biases by distance, which has no samples. Needs
    transformers."""

    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration

        self.net = T5ForConditionalGeneration(T5Config(
            vocab_size=WORDS, d_model=width, d_kv=width // 4, d_ff=2 * width, num_layers=depth, num_heads=4, dropout_rate=0.0,
            relative_attention_num_buckets=8, relative_attention_max_distance=16,
        ))  # fmt: skip

    def forward(self, tokens: Any, said: Any) -> Any:
        return self.net(input_ids=tokens, decoder_input_ids=said, use_cache=False).logits


class Adapted(Llama):
    """Llama of which nothing is trained but layers of low rank beside those of its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        for block in self.blocks:
            for name in ("wq", "wv"):
                setattr(block.attention, name, Beside(getattr(block.attention, name)))


class Beside(nn.Module):
    """A layer that is not trained, and two of low rank that are."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


MODULES: dict[str, type[nn.Module]] = {
    "gpt2": GPT2, "llama": Llama, "gpt": GPT, "masked": Masked, "mixtral": Mixtral, "t5": T5, "resnet": ResNet, "cnn": CNN,
    "adapted": Adapted,
}  # fmt: skip


def examples(name: str) -> list[Any]:
    """Arguments of forward for `from_torch`."""
    if name in ("resnet", "cnn"):
        return [(BATCH, 3, 16, 16)]
    tokens = torch.zeros(BATCH, STEPS, dtype=torch.long)
    if name == "masked":
        return [tokens, torch.ones(BATCH, STEPS)]
    return [tokens, tokens] if name in ("gpt", "t5") else [tokens]


def graph(name: str = "llama", batch: int = BATCH) -> taskflow.OperatorGraph:
    """The network's graph, which is imported once."""
    assert batch == BATCH
    return _imported(name)


@cache
def _imported(name: str) -> taskflow.OperatorGraph:
    torch.manual_seed(0)
    return taskflow.from_torch(MODULES[name](), *examples(name), name=name)


def batch_of(name: str, generator: Any) -> tuple[list[Any], Any]:
    """A random batch: inputs and labels."""
    if name in ("resnet", "cnn"):
        images = torch.randn(BATCH, 3, 16, 16, generator=generator)
        return [images], _some_ignored(torch.randint(WORDS, (BATCH,), generator=generator), generator)
    tokens = torch.randint(WORDS, (BATCH, STEPS), generator=generator)
    inputs = [tokens, torch.arange(STEPS).repeat(BATCH, 1)] if name == "gpt" else [tokens]
    if name == "t5":
        inputs = [tokens, torch.randint(WORDS, (BATCH, STEPS), generator=generator)]
    if name == "masked":
        inputs = [tokens, (torch.rand(BATCH, STEPS, generator=generator) > 0.3).float()]
    return inputs, _some_ignored(torch.randint(WORDS, (BATCH, STEPS), generator=generator), generator)


def _some_ignored(labels: Any, generator: Any) -> Any:
    """The first quarter of the samples has no labels, which may be a whole micro-batch or replica; of the others a few are gone."""
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = -100
    labels[: BATCH // 4] = -100
    return labels


def loss(output: Any, target: Any) -> Any:
    """Mean cross-entropy over the labels that are not -100."""
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def trained_alone(name: str, steps: int) -> tuple[list[float], nn.Module]:
    """The losses of so many steps of PyTorch alone, and the module after them."""
    torch.manual_seed(0)
    module, generator = MODULES[name](), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        inputs, labels = batch_of(name, generator)
        optimizer.zero_grad()
        found = loss(module(*inputs), labels)
        found.backward()
        optimizer.step()
        losses.append(found.item())
    return losses, module
