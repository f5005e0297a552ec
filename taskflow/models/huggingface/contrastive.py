"""The loss of networks that compare images and words: each sample's words must fit its own image best, and its image its words.

Radford et al., "Learning transferable visual models from natural language supervision", arXiv 2103.00020, figure 3. The scores are
of all samples with all, so a step cannot go through in micro-batches, and a plan that has them is refused.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from taskflow import operators as ops
from taskflow.operators.tensor import Tensor

LOSS = "image_text_contrastive_loss"  # of transformers' CLIP and its kin


def is_contrastive(module: Any) -> bool:
    """True for a network of transformers whose own loss is the cross-entropy of its scores, along words and along images."""
    kind = type(module)
    return hasattr(sys.modules[kind.__module__], LOSS) and "logit_scale" in module._parameters and kind.__name__.endswith("Model")


def contrastive_loss(result: Any) -> Tensor:
    """Return the mean of both cross-entropies of what such a network returns: of ``logits_per_text`` (N, N) and
    ``logits_per_image``, whose diagonals are right."""
    words, images = result["logits_per_text"], result["logits_per_image"]
    own = ops.constant(words.graph, np.arange(words.shape[0]), name="pairs")
    each = [
        ops.cross_entropy(scores, own, ignore_index=None, name=f"loss.{name}")
        for name, scores in (("text", words), ("image", images))
    ]
    return ops.scale(ops.add(*each, name="loss.both"), 0.5, name="loss")
