"""Text of a probe: the files of `script`, joined."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from taskflow.export.pytorch import joined_code

SCRIPT = Path(__file__).with_name("script")
FILES = ("clock", "cases", "work", "messages", "../../export/pytorch/support/exchange", "parts", "main")  # as they need each other
ABOUT = '''"""Measures what this machine's PyTorch does in what time. Written by taskflow probe; needs PyTorch alone.

    torchrun --nproc-per-node 8 {name} --out probe.json
    python {name} --out probe.json

On several nodes start torchrun on each, as for training. Then, where taskflow is: taskflow machine build probe.json --out mine.json
"""'''
Named = tuple[str, tuple[int, ...]]


def probe_text(name: str, of_plan: Sequence[Named] = (), sizes: Sequence[int] = ()) -> str:
    """Return the text of a probe for a file called ``name``. ``of_plan``: operators of a plan, and ``sizes``: bytes of its
    messages, which it times, too."""
    imports, bodies = joined_code(SCRIPT, FILES)
    listed = "".join(f"    {one!r},\n" for one in dict.fromkeys(of_plan))
    empty = "OF_A_PLAN: list[tuple[str, tuple[int, ...]]] = []"
    body = "\n\n\n".join(bodies)
    assert empty in body, "cases.py has a place for a plan's operators"
    body = body.replace(empty, f"{empty[:-2]}[\n{listed}]" if listed else empty)
    body = body.replace("OF_A_PLAN_BYTES: list[int] = []", f"OF_A_PLAN_BYTES: list[int] = {list(sizes)}")
    return "\n\n".join([ABOUT.format(name=name), "from __future__ import annotations", imports, body]) + "\n"
