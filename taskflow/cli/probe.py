"""taskflow probe: writes a program that measures a machine and needs PyTorch alone."""

from __future__ import annotations

from pathlib import Path

import click

from taskflow.cli.problem import emit, output_options, writable
from taskflow.cli.tables import tell
from taskflow.probe import probe_text
from taskflow.writing import replacing


@click.command("probe")
@click.option("--out", type=click.Path(dir_okay=False), default="probe.py", show_default=True, help="The program to write.")
@output_options
def probe_command(out: str, as_json: bool, quiet: bool) -> None:
    """Write a program that measures what a machine's PyTorch does in what time.

    It needs PyTorch alone, runs on one device or under torchrun on several nodes, on GPUs or CPUs, and takes less than three
    minutes. `taskflow machine build` makes a machine of what it writes.

    \b
    Examples:
      taskflow probe --out probe.py
      torchrun --nproc-per-node 8 probe.py --out probe.json
      taskflow machine build probe.json --like h100 --out mine.json
    """
    writable(out)
    if not out.endswith(".py"):
        raise ValueError(f"--out must end in .py, since it is a Python program; got {out}")
    text = probe_text(Path(out).name)
    with replacing(Path(out)) as file:
        file.write_text(text)
    if as_json:
        emit({"written": [out]})
        return
    tell(f"wrote {out}")
    if not quiet:
        tell(f"run it where you train: torchrun --nproc-per-node N {out} --out probe.json")
