"""The code of `try.py`, which `taskflow try` joins into one file; it needs PyTorch alone."""

from taskflow.trial.script.found import FORMAT

__all__ = ["FORMAT"]
