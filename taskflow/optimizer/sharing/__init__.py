"""Sharing a cluster among several jobs: which devices each gets, and each job's plan."""

from taskflow.optimizer.sharing.divisions import (
    Division,
    Shape,
    Units,
    divisions,
    equal_division,
    members,
    shape_of,
    units,
)
from taskflow.optimizer.sharing.share import OBJECTIVES, Job, JobShare, Sharing, share, throughput
from taskflow.optimizer.sharing.together import Together, merge, on_members, together

__all__ = [
    "OBJECTIVES",
    "Division",
    "Job",
    "JobShare",
    "Shape",
    "Sharing",
    "Together",
    "Units",
    "divisions",
    "equal_division",
    "members",
    "merge",
    "on_members",
    "shape_of",
    "share",
    "throughput",
    "together",
    "units",
]
