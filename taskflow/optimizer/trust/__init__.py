"""Trust: how far a prediction can be trusted, judged by similar measured plans and how far their predictions were off."""

from taskflow.optimizer.trust.expected_error import Trust, trust
from taskflow.optimizer.trust.features import Features, features
from taskflow.optimizer.trust.measured import MEASURED, MeasuredPlan

__all__ = ["MEASURED", "Features", "MeasuredPlan", "Trust", "features", "trust"]
