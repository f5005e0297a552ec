"""Windows of a text: together they are the streams, and targets are inputs one token later."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from taskflow.training import LanguageModelBatches


@st.composite
def cases(draw) -> LanguageModelBatches:  # type: ignore[no-untyped-def]
    count, batch, steps = draw(st.integers(2, 400)), draw(st.integers(1, 9)), draw(st.integers(1, 12))
    assume(batch * steps + 1 <= count)
    kind = draw(st.sampled_from([np.uint16, np.int32, np.int64]))
    return LanguageModelBatches(np.arange(count, dtype=kind) * 7 % 311, batch, steps)


@given(cases())
def test_windows_together_are_the_streams(batches: LanguageModelBatches) -> None:
    windows = list(batches)
    inputs = np.concatenate([w.inputs for w in windows], axis=1)
    targets = np.concatenate([w.targets for w in windows], axis=1)
    read = batches.steps_per_epoch * batches.steps
    for row in range(batches.batch):
        start = row * batches.stream_length
        assert np.array_equal(inputs[row], batches.tokens[start : start + read])
        assert np.array_equal(targets[row], batches.tokens[start + 1 : start + read + 1])


@given(cases())
def test_shapes_types_and_length(batches: LanguageModelBatches) -> None:
    assert len(list(batches)) == len(batches) == batches.steps_per_epoch
    for window in batches:
        assert window.inputs.shape == window.targets.shape == (batches.batch, batches.steps)
        assert window.inputs.dtype == window.targets.dtype == np.int32
        assert np.array_equal(window.inputs[:, 1:], window.targets[:, :-1])


@given(cases())
def test_uses_as_much_text_as_there_are_whole_windows(batches: LanguageModelBatches) -> None:
    most = (len(batches.tokens) - 1) // (batches.batch * batches.steps)
    assert batches.steps_per_epoch == most


@given(cases(), st.integers(0, 500))
def test_goes_round_and_says_so(batches: LanguageModelBatches, k: int) -> None:
    window, again = batches.at(k), batches.at(k + batches.steps_per_epoch)
    assert (window.epoch, window.index) == divmod(k, batches.steps_per_epoch)
    assert (again.epoch, again.index, again.reset) == (window.epoch + 1, window.index, window.reset)
    assert window.reset == (k % batches.steps_per_epoch == 0)
    assert np.array_equal(window.inputs, again.inputs) and np.array_equal(window.targets, again.targets)


def test_views_where_the_type_fits() -> None:
    tokens = np.arange(100, dtype=np.int32)
    window = LanguageModelBatches(tokens, 3, 5).at(4)
    assert np.shares_memory(window.inputs, tokens) and np.shares_memory(window.targets, tokens)
    same = LanguageModelBatches(tokens.astype(np.uint16), 3, 5, np.dtype(np.uint16))
    assert np.shares_memory(same.at(4).targets, same.tokens)
    assert np.array_equal(same.at(4).targets, window.targets)


def test_written_out() -> None:
    window = LanguageModelBatches(np.arange(13), 2, 3).at(1)
    assert window.inputs.tolist() == [[3, 4, 5], [9, 10, 11]]
    assert window.targets.tolist() == [[4, 5, 6], [10, 11, 12]]


def test_smallest_text_and_one_token_less() -> None:
    assert len(LanguageModelBatches(np.arange(13), 3, 4)) == 1
    with pytest.raises(ValueError, match=r"batch 3 x 4 steps needs 13 tokens, got 12; give more text"):
        LanguageModelBatches(np.arange(12), 3, 4)
    with pytest.raises(ValueError, match="got 0"):
        LanguageModelBatches(np.arange(0), 1, 1)


@pytest.mark.parametrize("batch, steps, name", [(0, 3, "batch"), (3, 0, "steps"), (-1, 3, "batch")])
def test_refuses_empty_windows(batch: int, steps: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a positive integer"):
        LanguageModelBatches(np.arange(100), batch, steps)


def test_refuses_other_shapes_and_numbers() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        LanguageModelBatches(np.zeros((4, 4)), 1, 1)
    with pytest.raises(IndexError, match="count from 0"):
        LanguageModelBatches(np.arange(9), 2, 2).at(-1)
