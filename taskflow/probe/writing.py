"""Text of a probe: the files of `script` or `script_jax`, joined."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from taskflow.export.pytorch import joined_code

FOLDERS = {"torch": Path(__file__).with_name("script"), "jax": Path(__file__).with_name("script_jax")}
SUPPORT = ("exchange", "plan", "modules", "statistics", "layers")  # of exported modules, which the probe times
FILES = {  # as they need each other
    "torch": (
        "clock", "../cases", "work", *(f"../../export/pytorch/support/{name}" for name in SUPPORT),
        "messages", "parts", "cut", "main",
    ),
    "jax": ("clock", "../cases", "work", "messages", "main"),
}
FRAMEWORKS = tuple(FILES)
ABOUT = {
    "torch": '''"""Measures what this machine's PyTorch does in what time. Written by taskflow probe; needs PyTorch alone.

    torchrun --nproc-per-node 8 {name} --out probe.json
    python {name} --out probe.json

On several nodes start torchrun on each, as for training. Then, where taskflow is: taskflow machine build probe.json --out mine.json
"""''',
    "jax": '''"""Measures what this machine's JAX does in what time. Written by taskflow probe; needs JAX alone.

    python {name} --out probe.json
    XLA_FLAGS=--xla_force_host_platform_device_count=2 python {name} --out probe.json

All devices of this process are measured at once; the second line is for a CPU that is to be two of them. Then, where taskflow is:
taskflow machine build probe.json --out mine.json
"""''',
}
Named = tuple[str, tuple[int, ...]]


def probe_text(name: str, of_plan: Sequence[Named] = (), sizes: Sequence[int] = (), framework: str = "torch") -> str:
    """Return the text of a probe for a file called ``name``. ``of_plan``: operators of a plan, and ``sizes``: bytes of its
    messages, which it times, too. ``framework``: of `FRAMEWORKS`, which it needs."""
    imports, bodies = joined_code(FOLDERS[framework], FILES[framework])
    listed = "".join(f"    {one!r},\n" for one in dict.fromkeys(of_plan))
    empty = "OF_A_PLAN: list[tuple[str, tuple[int, ...]]] = []"
    body = "\n\n\n".join(bodies)
    assert empty in body, "cases.py has a place for a plan's operators"
    body = body.replace(empty, f"{empty[:-2]}[\n{listed}]" if listed else empty)
    body = body.replace("OF_A_PLAN_BYTES: list[int] = []", f"OF_A_PLAN_BYTES: list[int] = {list(sizes)}")
    return "\n\n".join([ABOUT[framework].format(name=name), "from __future__ import annotations", imports, body]) + "\n"
