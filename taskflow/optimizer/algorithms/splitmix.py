"""SplitMix: the random numbers of a walk, the same on every version of Python; and the rule by which walks accept a slower
strategy."""

from __future__ import annotations

from hashlib import sha256
from math import log
from random import Random

WORD = (1 << 64) - 1  # the bits of a state


class SplitMix(Random):
    """SplitMix64 (Steele, Lea, Flood 2014) with the interface of `random.Random`; ``state`` is its whole state.

    ``seed``: a text, the first 8 bytes of whose SHA-256 are the first state; or that state itself, 0 to 2**64 - 1.
    """

    def __init__(self, seed: str | int) -> None:
        super().__init__(0)
        text = isinstance(seed, str)
        self.state = int.from_bytes(sha256(str(seed).encode()).digest()[:8], "little") if text else int(seed) & WORD

    def _word(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & WORD
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
        z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
        return z ^ z >> 31

    def getrandbits(self, k: int) -> int:
        """Return ``k`` random bits: the upper ones of a word; for more than 64, whole words first."""
        if k < 0:
            raise ValueError(f"Draws: the number of bits must not be negative, got {k}")
        found = 0
        while k > 64:
            found, k = found << 64 | self._word(), k - 64
        return found << k | (self._word() >> 64 - k if k else 0)

    def random(self) -> float:
        """Return a uniform number in [0, 1), a multiple of 2**-53."""
        return (self._word() >> 11) * 2.0**-53


# The rule by which annealing searches accept a slower strategy (Metropolis and Hastings; the paper, section 6.2).
def acceptance_limit(seconds: float, scale: float, random: Random | SplitMix) -> float:
    """Return the seconds up to which a proposal is accepted instead of a strategy of ``seconds``.

    One of ``more`` seconds is accepted with probability exp((seconds - more) / scale): if a drawn u is no larger. Drawn first, u
    gives a limit, and a simulation may stop beyond it.
    """
    return seconds - scale * log(1.0 - random.random())
