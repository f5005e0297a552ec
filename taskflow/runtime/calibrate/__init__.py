"""Measurement of this machine's rates: of processors, and of the links between ranks."""

from taskflow.runtime.calibrate.machine import measure

__all__ = ["measure"]
