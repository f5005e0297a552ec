"""Find a fast strategy for a graph on a machine.

``search`` is the entry. Time limits, the search's state and its result are modules of this folder; the rest is in
packages:

- ``space``: which strategies there are
- ``algorithms``: how they are searched
- ``evaluate``: how long a step takes under one
- ``cost``: how long a task takes
- ``memory``: how much a device needs
- ``bounds``: what no strategy beats
- ``traffic``: what moves, by links
- ``explain``: why a step takes as long as it does
- ``grid``: plans with micro-batches and stages, in closed form, and the search that goes on from them
- ``sharing``: several jobs on one machine
- ``trust``: how far measured plans were off
"""

from taskflow.optimizer.budget import Budget, Deadline
from taskflow.optimizer.memory_check import RULE, MemoryCheck
from taskflow.optimizer.options import SearchOptions
from taskflow.optimizer.result import SearchResult
from taskflow.optimizer.search import ALGORITHMS, make_evaluator, search

__all__ = ["ALGORITHMS", "RULE", "Budget", "Deadline", "MemoryCheck", "SearchOptions", "SearchResult", "make_evaluator", "search"]
