"""Losses of networks that compare images and words: each sample's words must fit its own image best, and its image its words.

The scores are of all samples with all, so a step cannot go through in micro-batches, and a plan that has them is refused.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from taskflow import operators as ops
from taskflow.floats import is_narrow
from taskflow.operators.tensor import Tensor

LOSS = "image_text_contrastive_loss"  # of transformers' CLIP and its kin
SIGMOIDS = "torch.nn.functional.logsigmoid"  # what SigLIP and its kin make their loss of


def own_loss(module: Any) -> Callable[[Any], Tensor] | None:
    """Return the loss that a network of transformers has of its scores of all samples with all; None for other networks."""
    kind = type(module)
    if "logit_scale" not in module._parameters or not kind.__name__.endswith("Model"):
        return None
    if hasattr(sys.modules[kind.__module__], LOSS):
        return contrastive_loss
    pairwise = "logit_bias" in module._parameters and SIGMOIDS in inspect.getsource(kind.forward)
    return sigmoid_loss if pairwise else None


def contrastive_loss(result: Any) -> Tensor:
    """Return the mean of both cross-entropies of what such a network returns: of ``logits_per_text`` (N, N) and
    ``logits_per_image``, whose diagonals are right (Radford et al., "Learning transferable visual models from natural language
    supervision", arXiv 2103.00020, figure 3)."""
    words, images = result["logits_per_text"], result["logits_per_image"]
    own = ops.constant(words.graph, np.arange(words.shape[0]), name="pairs")
    each = [
        ops.cross_entropy(scores, own, ignore_index=None, name=f"loss.{name}")
        for name, scores in (("text", words), ("image", images))
    ]
    return ops.scale(ops.add(*each, name="loss.both"), 0.5, name="loss")


def sigmoid_loss(result: Any) -> Tensor:
    """Return the mean over N samples of what SigLIP adds up: -log sigmoid(z) of the pair that belongs together, and -log
    sigmoid(-z) of all others. ``logits_per_text`` (N, N) has z, with the right pairs on its diagonal (Zhai et al., "Sigmoid loss
    for language image pre-training", arXiv 2303.15343, equation 2)."""
    scores = result["logits_per_text"]
    if is_narrow(scores.dtype):  # losses are in float32, as cross-entropies are
        scores = ops.cast(scores, "float32", name="loss.scores")
    samples = scores.shape[0]
    own = ops.constant(scores.graph, np.arange(samples).reshape(samples, 1), name="pairs")
    apart = ops.sum(ops.softplus(scores, name="loss.apart"), name="loss.all")  # -log sigmoid(-z); less z, it is -log sigmoid(z)
    fits = ops.sum(ops.gather(scores, own, name="loss.own"), name="loss.fits")
    return ops.scale(ops.sub(apart, fits, name="loss.sum"), 1 / samples, name="loss")
