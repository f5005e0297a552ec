"""Subwords: a vocabulary of frequent parts of words, learned from a text, which can spell any other text.

Byte pair encoding (Sennrich, Haddow and Birch, arXiv 1508.07909) over bytes, by the library tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

PAD, BEGIN, END = 0, 1, 2
"""Words beside the text's: what fills rows, what starts and what ends a sentence."""
SPECIAL = ("<pad>", "<s>", "</s>")
_BYTES = 256


@dataclass(frozen=True, slots=True, eq=False)
class Subwords:
    """Learned vocabulary. Its numbers begin after PAD, BEGIN and END, which no text can contain."""

    tokenizer: Any  # tokenizers.Tokenizer

    @staticmethod
    def learn(text: Iterable[str], size: int) -> Subwords:
        """Learn at most ``size`` words, including PAD, BEGIN, END and the 256 bytes. The same text gives the same vocabulary.

        Raises ValueError if ``size`` is too small for those, ImportError if the library is missing.
        """
        least = len(SPECIAL) + _BYTES
        if size < least:
            raise ValueError(f"Subwords: the vocabulary needs at least {least} words, got a size of {size}")
        library = _library()
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=size - len(SPECIAL), show_progress=False, special_tokens=[],
            initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        )
        tokenizer.train_from_iterator(text, trainer)
        return Subwords(tokenizer)

    @staticmethod
    def from_json(text: str) -> Subwords:
        """Return the vocabulary that `to_json` wrote. Raises ValueError for anything else."""
        library = _library()
        try:
            return Subwords(library.Tokenizer.from_str(text))
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"Subwords: not a vocabulary of the library tokenizers: {error}") from error

    def to_json(self) -> str:
        """Return the format of the library tokenizers, whose numbers are lower by 3."""
        return str(self.tokenizer.to_str())

    def __len__(self) -> int:
        return len(SPECIAL) + int(self.tokenizer.get_vocab_size())

    @property
    def words(self) -> tuple[str, ...]:
        """Return every word by its number, as the library writes them."""
        table: dict[str, int] = self.tokenizer.get_vocab()
        return (*SPECIAL, *sorted(table, key=lambda word: table[word]))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the numbers of each text's words, without BEGIN and END."""
        shift = len(SPECIAL)
        return [[shift + n for n in found.ids] for found in self.tokenizer.encode_batch(list(texts))]

    def decode(self, numbers: Iterable[int]) -> str:
        """Return the text that the numbers spell, up to the first END; PAD and BEGIN are left out."""
        own = []
        for number in numbers:
            if number == END:
                break
            if number >= len(SPECIAL):
                own.append(int(number) - len(SPECIAL))
        return str(self.tokenizer.decode(own)).strip()


def _library() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise ImportError(
            "subwords: learning a vocabulary needs the library tokenizers; pip install 'soap-taskflow[examples]'"
        ) from error
    return tokenizers
