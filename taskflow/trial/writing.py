"""Text of `try.py`: the files of `script`, joined."""

from __future__ import annotations

from pathlib import Path

from taskflow.export.pytorch import joined_code

SCRIPT = Path(__file__).with_name("script")
SCRIPT_NAME, PLANS = "try.py", "plans.json"
FILES = ("../../models/pytorch/meta", "timing", "network", "visit", "ranks", "found", "main")  # as they need each other
ABOUT = '''"""Runs plans for some steps each, in turns, and says how long they take beside what was predicted. Written by taskflow
try; needs PyTorch alone, and the files beside it.

    torchrun --nproc-per-node {ranks} {name} --out try.json

On several nodes start torchrun on each, as for training. Each visit to a plan is a process of its own on every rank, so
that a plan that fails or lacks memory does not disturb the others.
"""'''


def script_text(ranks: int) -> str:
    """Return the text of the program for plans of so many ranks."""
    imports, bodies = joined_code(SCRIPT, FILES)
    body = "\n\n\n".join(bodies)
    return "\n\n".join([ABOUT.format(name=SCRIPT_NAME, ranks=ranks), "from __future__ import annotations", imports, body]) + "\n"
