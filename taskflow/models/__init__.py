"""Networks as functions that build operator graphs, and a registry of them by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.models.alexnet import AlexNetConfig, alexnet
from taskflow.models.deepseek import SIZES as DEEPSEEK_SIZES
from taskflow.models.deepseek import DeepSeekConfig, deepseek
from taskflow.models.gpt import GPT_2_SIZES, GPT_3_SIZES, GPTConfig, gpt
from taskflow.models.inception import InceptionConfig, inception_v3
from taskflow.models.lenet import LeNetConfig, lenet
from taskflow.models.llama import SIZES as LLAMA_SIZES
from taskflow.models.llama import LlamaConfig, llama
from taskflow.models.mixtral import SIZES as MIXTRAL_SIZES
from taskflow.models.mixtral import MixtralConfig, mixtral
from taskflow.models.mlp import MLPConfig, mlp
from taskflow.models.moe import SIZES as MOE_SIZES
from taskflow.models.moe import MoEConfig, moe
from taskflow.models.nmt import NMTConfig, nmt
from taskflow.models.notes import ImportNote, notes_kept
from taskflow.models.places import is_dropless, with_places
from taskflow.models.resnet import ResNetConfig, resnet
from taskflow.models.rnnlm import RNNLMConfig, rnnlm
from taskflow.models.rnntc import RNNTCConfig, rnntc
from taskflow.models.transformer import TransformerConfig, transformer
from taskflow.models.vocabulary import BLOCKS
from taskflow.operators.operator import positive

__all__ = [
    "BLOCKS",
    "MODELS",
    "AlexNetConfig",
    "DeepSeekConfig",
    "GPTConfig",
    "ImportNote",
    "InceptionConfig",
    "LeNetConfig",
    "LlamaConfig",
    "MLPConfig",
    "MixtralConfig",
    "MoEConfig",
    "Model",
    "NMTConfig",
    "RNNLMConfig",
    "RNNTCConfig",
    "ResNetConfig",
    "TransformerConfig",
    "alexnet",
    "build",
    "deepseek",
    "find",
    "find_sized",
    "gpt",
    "inception_v3",
    "is_dropless",
    "lenet",
    "llama",
    "mixtral",
    "mlp",
    "moe",
    "nmt",
    "notes_kept",
    "resnet",
    "rnnlm",
    "rnntc",
    "transformer",
    "with_places",
]


@dataclass(frozen=True, slots=True)
class Model:
    """A network's builder and its sizes. ``paper``: sizes whose batch is of one device. ``small``: the same structure in
    miniature, whose batch is of the whole machine. ``sizes``: other published sizes like ``paper``, by name."""

    builder: Callable[..., OperatorGraph]  # (config, dtype)
    paper: Any  # of the model's frozen config class
    small: Any
    sizes: Mapping[str, Any] = field(default_factory=dict)


MODELS: dict[str, Model] = {
    "AlexNet": Model(alexnet, AlexNetConfig(), AlexNetConfig.small()),
    "Inception-v3": Model(inception_v3, InceptionConfig(), InceptionConfig.small()),
    "ResNet-101": Model(resnet, ResNetConfig(), ResNetConfig.small()),
    "RNNTC": Model(rnntc, RNNTCConfig(), RNNTCConfig.small()),
    "RNNLM": Model(rnnlm, RNNLMConfig(), RNNLMConfig.small()),
    "RNNLM-2": Model(rnnlm, RNNLMConfig.two_steps(), replace(RNNLMConfig.small(), steps=2, steps_per_operator=1)),
    "NMT": Model(nmt, NMTConfig(), NMTConfig.small()),
    "LeNet": Model(lenet, LeNetConfig(), LeNetConfig.small()),
    "MLP": Model(mlp, MLPConfig(), MLPConfig.small()),
    "Transformer": Model(transformer, TransformerConfig(), TransformerConfig.small()),
    "GPT-2": Model(gpt, GPTConfig(), GPTConfig.small(), GPT_2_SIZES),
    "GPT-3": Model(gpt, GPT_3_SIZES["175B"], GPTConfig.small(), GPT_3_SIZES),
    "Llama": Model(llama, LLAMA_SIZES["8B"], LlamaConfig.small(), LLAMA_SIZES),
    "DeepSeek": Model(deepseek, DEEPSEEK_SIZES["V3"], DeepSeekConfig.small(), DEEPSEEK_SIZES),
    "Mixtral": Model(mixtral, MIXTRAL_SIZES["8x7B"], MixtralConfig.small(), MIXTRAL_SIZES),
    "MoE": Model(moe, MOE_SIZES["600B"], MoEConfig.small(), MOE_SIZES),
}


def find(name: str) -> tuple[str, Model]:
    """Return a model and its name as it is written, such as "Llama". With the name of a size ("Llama-70B"), that size is the
    model's ``paper``. Case, hyphens and underscores do not matter. Raises ValueError that lists the models."""
    for known, model in MODELS.items():
        if _plain(known) == _plain(name):
            return known, model
        for size, config in model.sizes.items():
            if _plain(known + size) == _plain(name):
                return f"{known}-{size}", replace(model, paper=config)
    there_are = [f"{known} ({', '.join(model.sizes)})" if model.sizes else known for known, model in MODELS.items()]
    raise ValueError(f"no model {name!r}; there are {', '.join(there_are)}")


def find_sized(name: str, size: str) -> tuple[str, Model]:
    """Return a model with ``size`` as its ``paper``: one of the names of its sizes, such as 405B, or ``paper`` or ``small`` to
    leave it unchanged. Raises ValueError that lists the sizes."""
    known, model = find(name)
    if size in ("paper", "small"):
        return known, model
    for one, config in model.sizes.items() if known in MODELS else ():
        if _plain(one) == _plain(size):
            return f"{known}-{one}", replace(model, paper=config)
    there_are = ", ".join(["paper", "small", *(model.sizes if known in MODELS else ())])
    raise ValueError(f"{known}: no size {size!r}; there are {there_are}")


def build(
    name: str,
    batch: int | None = None,
    devices: int = 1,
    *,
    preset: str = "paper",
    dtype: str = "float32",
    **sizes: Any,
) -> OperatorGraph:
    """Return the graph of a model by name.

    ``batch``: samples of the whole machine; by default the paper's for each of ``devices`` devices (AlexNet 256, others 64).
    ``preset``: "paper" or "small" sizes, or a published one by its name, such as "8B". ``sizes`` replace single ones (fields of
    the model's config class). Raises ValueError that lists what exists.
    """
    known, model = find_sized(name, preset)
    config = model.small if preset == "small" else model.paper
    if batch is None:
        batch = config.batch * (1 if preset == "small" else devices)
    there_are = [field.name for field in fields(config)]
    for size in sizes:
        if size not in there_are:
            raise ValueError(f"{known}: no size {size!r}; there are {', '.join(there_are)}")
    config = replace(config, batch=batch, **sizes)
    positive(known, **{field.name: getattr(config, field.name) for field in fields(config) if field.type in ("int", int)})
    graph = model.builder(config, dtype)
    if preset != "small" or (known in MODELS and graph.name in MODELS):  # GPT-2 and GPT-3 have one builder
        graph.name = known
    return graph


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
