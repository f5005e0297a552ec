"""BLEU: the fraction of words, and of runs of up to four words, that translations share with references (Papineni et al., ACL
2002). Computed by sacrebleu, so that figures are comparable (Post, arXiv 1804.08771)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def require() -> Any:
    """Return the library. Raises ImportError that says what to do if it is missing."""
    try:
        import sacrebleu
    except ImportError as error:
        raise ImportError("bleu: needs the library sacrebleu; pip install 'soap-taskflow[examples]'") from error
    return sacrebleu


def bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """Return the score from 0 to 100 (equal), over all sentences together; one reference for each translation, both plain text.

    Raises ValueError if their numbers differ or are 0, ImportError if sacrebleu is missing.
    """
    if len(translations) != len(references) or not translations:
        raise ValueError(
            f"bleu: needs as many translations as references and at least one, got {len(translations)} and {len(references)}"
        )
    return float(require().corpus_bleu(list(translations), [list(references)]).score)
