"""The compiled twin of kernels/definitions/random.py: its methods have the definition's types."""

from taskflow.kernels.definitions import RandomKernels

class NativeRandom(RandomKernels): ...
