"""What a job has said, without what its mpirun adds."""

from __future__ import annotations

import re


def spoken(text: str) -> str:
    """``text`` without the paragraphs between two lines of dashes, and the NUL behind them, in which Open MPI's mpirun says how
    a job ended, and without its own error lines and the stack that it shows of a crash. Without the paragraphs between lines of
    equal signs, too, of which Intel's mpirun says one for each rank that it ends."""
    text = re.sub(r"^={40,}\n=.*?^={40,}\n", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^-{40,}\n.*?^-{40,}\n\0?", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^\[\S+:\d+\] .*\n", "", text, flags=re.MULTILINE)
