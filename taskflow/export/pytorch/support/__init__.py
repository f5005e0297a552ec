"""Support: code that every exported module contains: a plan's layers, stages and micro-batches on the ranks of torchrun.

These files are copied one after the other into the modules that `taskflow export --to torch` writes, so that they need nothing
but PyTorch. Layers that a plan cuts compute on their own pieces (local tensors); between them activations are DTensors, and
every redistribution is one that the plan asks for. Ranks ascend in the mesh, which PyTorch needs.
"""

from taskflow.export.pytorch.support.exchange import placed

__all__ = ["placed"]
