"""Trust: how far a prediction can be trusted, judged by similar measured plans and how far their predictions were off."""

from taskflow.optimizer.trust.features import Features, features
from taskflow.optimizer.trust.measured import MEASURED, MeasuredPlan
from taskflow.optimizer.trust.nearest import Trust, trust

__all__ = ["MEASURED", "Features", "MeasuredPlan", "Trust", "features", "trust"]
