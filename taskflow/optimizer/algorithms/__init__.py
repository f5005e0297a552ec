"""Search algorithms, one in each file, and the strategies from which they start.

``guided`` is the default; ``mcmc`` is the paper's; ``optcnn``, ``placement`` and ``exact`` are for comparison and small cases.
A new algorithm is a function (Evaluator, SearchOptions) -> SearchResult here and a line in ``optimizer/search.py``.
"""

from taskflow.optimizer.algorithms.exact import ROUNDING, exact
from taskflow.optimizer.algorithms.guided import guided
from taskflow.optimizer.algorithms.initial import known, random_start, without_far
from taskflow.optimizer.algorithms.local_search import polished
from taskflow.optimizer.algorithms.mcmc import mcmc
from taskflow.optimizer.algorithms.moves import SYNCS, OperatorGroups
from taskflow.optimizer.algorithms.optcnn import optcnn
from taskflow.optimizer.algorithms.placement import placement
from taskflow.optimizer.algorithms.portfolio import in_threads
