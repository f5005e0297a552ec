"""Conversion of torchvision's trained weights of AlexNet, ResNet and Inception-v3 for the networks of the same names here.

These networks name their layers as torchvision does, and store every array in the same layout, so little has to be done:

    graph = build("Inception-v3", batch=8)                     # 299 x 299 images
    run = taskflow.Executor(graph, strategy)
    load_weights(run, "inception_v3_google-0cc3c7bd.pth", rename=partial(of, transform_input=True))
    scores = run.predict({"images": images})                   # as model.eval()(images)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from taskflow.checkpoint import StoredWeights

_TRAINING_ONLY = ("AuxLogits.",)  # the second head of Inception, which evaluation does not use
_COUNTER = ".num_batches_tracked"  # of batch normalisation; it only counts
_FIRST = "Conv2d_1a_3x3"
# What torchvision's `transform_input` computes of channel c: x scale[c] + shift[c]. It turns images normalised by ImageNet's
# means and deviations into ones normalised by 0.5 and 0.5, which the published weights of Inception-v3 were trained with.
_MEANS, _DEVIATIONS = np.array((0.485, 0.456, 0.406)), np.array((0.229, 0.224, 0.225))
_SCALE, _SHIFT = _DEVIATIONS / 0.5, (_MEANS - 0.5) / 0.5


def of(stored: StoredWeights, *, transform_input: bool = False) -> StoredWeights:
    """Return a torchvision state_dict (AlexNet, ResNet-50, -101, -152, Inception-v3) under our names, without what only
    training uses.

    ``transform_input``: images are normalised as for torchvision's other models; its published Inception-v3 was trained with
    another normalisation. The difference is folded into the first convolution's weights, which is exact as it has no padding,
    and into the running mean after it. Raises ValueError if the file is then not an Inception-v3.
    """
    shapes = {n: s for n, s in stored.shapes.items() if not n.startswith(_TRAINING_ONLY) and not n.endswith(_COUNTER)}
    read: Callable[[str], Any] = stored.__getitem__
    if transform_input:
        weight, mean = f"{_FIRST}.conv.weight", f"{_FIRST}.bn.running_mean"
        if not {weight, mean} <= set(shapes):
            raise ValueError(f"{stored.source}: transform_input is Inception-v3's, which has {weight}")

        def read(name: str) -> Any:
            if name == weight:
                return stored[weight] * _SCALE[:, None, None]  # (O, 3, 3, 3)
            if name == mean:
                # conv(w, x scale + shift) = conv(w scale, x) + the sum of w shift, a number for each output channel.
                return stored[mean] - np.einsum("ochw,c->o", stored[weight], _SHIFT)
            return stored[name]

    return StoredWeights(stored.source, shapes, read, stored.metadata)
