"""How far a prediction can be trusted: measured plans like it, how far predictions of these were off, and the error to expect."""

from taskflow.optimizer.trust.features import Features, features
from taskflow.optimizer.trust.measured import MEASURED, Measured
from taskflow.optimizer.trust.nearest import Trust, trust

__all__ = ["MEASURED", "Features", "Measured", "Trust", "features", "trust"]
