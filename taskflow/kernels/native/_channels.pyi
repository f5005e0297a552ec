"""The compiled twin of kernels/definitions/channels.py: its methods have the definition's types."""

from taskflow.kernels.definitions import ChannelKernels

class NativeChannels(ChannelKernels): ...
