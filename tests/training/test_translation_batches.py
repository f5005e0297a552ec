"""Batches of sentences in two languages: what stands where, what counts, and in which order they come."""

from __future__ import annotations

import numpy as np
import pytest

from taskflow.training.data.subwords import BEGIN, END, PAD
from taskflow.training.translation.batches import IGNORED, TranslationBatches

PAIRS = [([5, 6], [7]), ([8], [9, 10, 11]), ([12, 13, 14, 15, 16], [17]), ([18], [19]), ([20, 21], [22, 23]), ([24], [])]
TOKENS = np.array([word for pair in PAIRS for side in pair for word in (*side, END)], np.uint16)


def ordered(batch: int = 2, **settings: object) -> TranslationBatches:
    return TranslationBatches(TOKENS, batch, 4, **settings)


def test_rows_are_filled_up_and_labels_behind_the_end_are_ignored() -> None:
    batches = ordered(shuffled=False, full=False)
    assert (batches.pair_count, batches.too_long, len(batches)) == (5, 1, 3)
    first, _, last = batches
    assert first.source.tolist() == [[5, 6, END, PAD], [8, END, PAD, PAD]]
    assert first.target.tolist() == [[BEGIN, 7, PAD, PAD], [BEGIN, 9, 10, 11]]
    assert first.labels.tolist() == [[7, END, IGNORED, IGNORED], [9, 10, 11, END]]
    assert first.label_count == 6
    assert {array.dtype for array in first.feeds.values()} == {np.dtype(np.int64)}
    # The last batch is not full: an empty row counts nothing.
    assert last.pairs.tolist() == [4]
    assert last.source.tolist() == [[24, END, PAD, PAD], [PAD] * 4]
    assert last.labels.tolist() == [[END, *[IGNORED] * 3], [IGNORED] * 4]
    assert last.target.tolist() == [[BEGIN, PAD, PAD, PAD], [PAD] * 4]
    assert batches.items_per_step == round((2 + 4 + 2 + 3 + 1) / 5 * 2)


def test_every_epoch_has_another_order_that_only_the_seed_decides() -> None:
    batches = ordered(seed=3)
    assert len(batches) == 2
    epochs = [np.concatenate([batches.at(2 * e + i).pairs for i in range(2)]).tolist() for e in range(6)]
    assert all(len(set(rows)) == 4 for rows in epochs)
    assert len({tuple(rows) for rows in epochs}) > 3
    assert {row for rows in epochs for row in rows} == set(range(5))  # what one epoch leaves out, another has
    again = ordered(seed=3)
    assert again.at(7).pairs.tolist() == batches.at(7).pairs.tolist()  # asked for in another order
    assert any(ordered(seed=4).at(k).pairs.tolist() != batches.at(k).pairs.tolist() for k in range(4))
    assert [batches.at(k).epoch for k in range(5)] == [0, 0, 1, 1, 2]
    rest = ordered(seed=3, full=False)
    assert len(rest) == 3 and sorted(np.concatenate([b.pairs for b in rest])) == list(range(5))
    with pytest.raises(IndexError, match="count from 0, got -1"):
        batches.at(-1)


def test_a_batch_larger_than_the_text_has_empty_rows() -> None:
    batches = ordered(batch=8)
    assert len(batches) == 1
    batch = batches.at(1)
    assert sorted(batch.pairs.tolist()) == list(range(5)) and batch.epoch == 1
    assert (batch.labels[5:] == IGNORED).all() and batch.label_count == 12


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="batch must be a positive integer, got 0"):
        ordered(batch=0)
    with pytest.raises(ValueError, match="none of 6 pairs has at most 1 tokens on both sides; give more text or more"):
        TranslationBatches(TOKENS, 2, 1)
    with pytest.raises(ValueError, match="each ended by END"):
        TranslationBatches(TOKENS[:-1], 2, 4)
    with pytest.raises(ValueError, match="none of 0 pairs"):
        TranslationBatches(TOKENS[:0], 2, 4)
