"""The networks as programs: what each trains on, with which settings. ``taskflow train NAME`` and ``examples/`` run them."""

from __future__ import annotations

import importlib

import click

NETWORKS = {
    "AlexNet": "alexnet", "Inception-v3": "inception", "ResNet-101": "resnet", "RNNTC": "rnntc", "RNNLM": "rnnlm", "NMT": "nmt",
    "LeNet": "lenet", "MLP": "mlp", "Transformer": "transformer", "GPT-2": "gpt", "Llama": "llama",
    "Mixtral": "mixtral", "MoE": "moe",
}  # fmt: skip
"""Name -> module of this folder, whose ``main`` is the program."""


def program(name: str) -> click.Command:
    """Return the program that trains a network; case, hyphens and underscores of its name do not matter. Raises ValueError that
    lists the networks."""
    for known, module in NETWORKS.items():
        if _plain(name) in (_plain(known), module):
            found = importlib.import_module(f"{__name__}.{module}").main
            assert isinstance(found, click.Command), module
            return found
    raise ValueError(f"no program trains {name!r}; there are {', '.join(NETWORKS)}, and your own as package.module:command")


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
