"""The rule by which annealing searches accept a slower strategy (Metropolis and Hastings; the paper, section 6.2).

`mcmc.h` has it once more, in the compiled twin of the paper's search.
"""

from __future__ import annotations

from math import log
from random import Random

from taskflow.optimizer.algorithms.splitmix import SplitMix


def acceptance_limit(seconds: float, scale: float, random: Random | SplitMix) -> float:
    """Return the seconds up to which a proposal is accepted instead of a strategy of ``seconds``.

    One of ``more`` seconds is accepted with probability exp((seconds - more) / scale): if a drawn u is no larger. Drawn first, u
    gives a limit, and a simulation may stop beyond it.
    """
    return seconds - scale * log(1.0 - random.random())
