"""Sharing a cluster among several jobs: which devices each gets, and each job's plan."""

from taskflow.optimizer.sharing.concurrent_jobs import ConcurrentJobs, merge, simulate_jobs
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

__all__ = [
    "OBJECTIVES",
    "ConcurrentJobs",
    "Division",
    "Job",
    "JobShare",
    "Shape",
    "Sharing",
    "Units",
    "divisions",
    "equal_division",
    "members",
    "merge",
    "shape_of",
    "share",
    "simulate_jobs",
    "throughput",
    "units",
]
