"""The code of `try.py`, which `taskflow try` joins into one file; it needs PyTorch alone."""

from typing import TYPE_CHECKING

from taskflow.lazy import lazily
from taskflow.trial.script.found import FORMAT

if TYPE_CHECKING:
    from taskflow.trial.script.network import cross_entropy, drawn, loaded, mse_loss

__all__ = ["FORMAT", "cross_entropy", "drawn", "loaded", "mse_loss"]
__getattr__ = lazily(__name__, {"taskflow.trial.script.network": ("cross_entropy", "drawn", "loaded", "mse_loss")})
