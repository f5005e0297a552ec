"""Measure this machine's rates: processors and the links between ranks."""

from taskflow.runtime.calibrate.machine import measure

__all__ = ["measure"]
