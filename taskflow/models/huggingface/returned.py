"""Networks whose own forward asks for a result that a part of theirs does not return, so that transformers cannot run them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def missing_result(error: BaseException | None) -> str | None:
    """Return the name of what forward has asked of a mapping of transformers that has no such entry, if an error comes of that."""
    while error is not None:
        if isinstance(error, AttributeError) and error.name is not None and _is_mapping(error.obj):
            return error.name
        error = error.__cause__ or error.__context__
    return None


def _is_mapping(value: Any) -> bool:
    from transformers.utils.generic import ModelOutput

    return isinstance(value, ModelOutput)


@contextmanager
def returning_none(name: str) -> Iterator[None]:
    """Within the block, mappings of transformers that have no entry of that name have None for it."""
    from transformers.utils.generic import ModelOutput

    assert name not in vars(ModelOutput), name
    setattr(ModelOutput, name, None)
    try:
        yield
    finally:
        delattr(ModelOutput, name)
