"""Validation of a translation network: perplexity, BLEU, and a few translations for a person to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from taskflow.graph import OperatorGraph
from taskflow.mapper import alike
from taskflow.models.decoding import Translator, beam_search
from taskflow.runtime import Executor
from taskflow.training.data import BEGIN, END, Say, Subwords, Validation
from taskflow.training.evaluation import perplexity
from taskflow.training.translation.batches import IGNORED, TranslationBatches

MakeTranslator = Callable[..., Translator]  # (config, beams, plan, trained, *, begin, end)
MOST_LOSS_BATCHES = 20


@dataclass(frozen=True, slots=True)
class TranslationEvaluation(Validation):
    """Validation at the end of a run: ``loss`` in nats a token of the held-out pairs and ``perplexity``, over at most 20
    batches, and ``bleu`` of the first ``sentences``, translated by beam search with ``beams`` beams (1: greedily).

    ``config``: the network's. ``translator``: its Translator class. The graphs that translate run under the strategy of
    training, as far as it fits. ``plain``: the network without label smoothing, if training uses it, since perplexity is of the
    labels themselves. ``examples``: the number of translations that ``say`` is given.
    """

    batches: TranslationBatches
    subwords: Subwords
    config: Any
    translator: MakeTranslator
    beams: int = 4
    sentences: int = 128
    examples: int = 5
    plain: OperatorGraph | None = None

    def __post_init__(self) -> None:
        require()  # before training, not after it

    @property
    def names(self) -> tuple[str, ...]:
        return ("loss", "perplexity", "bleu")

    @property
    def each_epoch(self) -> bool:
        return False

    def measure(self, executor: Executor, say: Say) -> dict[str, float] | None:
        loss = self._loss(executor)
        translations, wanted, sources = self._translate(executor)
        if loss is None:
            return None
        for source, text, reference in list(zip(sources, translations, wanted))[: self.examples]:
            say(f"  source:    {source}\n  reference: {reference}\n  said:      {text}\n")
        return {"loss": loss, "perplexity": perplexity(loss), "bleu": bleu(translations, wanted)}

    def _loss(self, executor: Executor) -> float | None:
        """The mean over labels, known on rank 0."""
        scorer = executor
        if self.plain is not None:
            strategy = alike(executor.strategy, executor.graph, self.plain)
            scorer = Executor(self.plain, strategy, machine=executor.machine, weights=executor)
        total, count = 0.0, 0
        for k in range(min(MOST_LOSS_BATCHES, len(self.batches))):
            batch = self.batches.at(k)
            loss = scorer.evaluate(batch.feeds)
            if loss is None:
                total = float("nan")
            else:
                total += loss * batch.label_count
            count += batch.label_count
        scorer.close()
        return None if executor.transport.rank else total / count

    def _translate(self, executor: Executor) -> tuple[list[str], list[str], list[str]]:
        """Translations, references and sources, as text."""
        speaker = self.translator(
            self.config, self.beams, lambda graph: alike(executor.strategy, executor.graph, graph), executor, begin=BEGIN,
            end=END,
        )
        translations: list[str] = []
        wanted: list[str] = []
        sources: list[str] = []
        for batch in self.batches:
            found = beam_search(speaker, batch.source)
            for row in range(min(len(batch.pairs), self.sentences - len(translations))):
                translations.append(self.subwords.decode(found[row][0].words))
                wanted.append(self.subwords.decode(n for n in batch.labels[row] if n != IGNORED))
                sources.append(self.subwords.decode(batch.source[row]))
            if len(translations) == self.sentences:
                break
        speaker.close()
        return translations, wanted, sources


# BLEU: the fraction of words, and of runs of up to four words, that translations share with references (Papineni et al., ACL
# 2002). Computed by sacrebleu, so that figures are comparable (Post, arXiv 1804.08771).
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
