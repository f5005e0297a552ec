"""The compiled twin of kernels/definitions/convolutions.py: its methods have the definition's types."""

from taskflow.kernels.definitions import ConvolutionKernels

class NativeConvolutions(ConvolutionKernels): ...
