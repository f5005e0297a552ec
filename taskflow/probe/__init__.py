"""Machines as PyTorch sees them: a probe that needs PyTorch alone, and what is made of its measurements.

``script/`` is the probe's code, ``writing.py`` joins it into one file.
"""

from taskflow.probe.writing import probe_text

__all__ = ["probe_text"]
