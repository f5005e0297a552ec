"""taskflow machine build: a machine file of a probe's measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from taskflow.cli import completing
from taskflow.cli.options import emit, output_options, writable
from taskflow.cli.tables import render, tell
from taskflow.machine import load_machine, save
from taskflow.probe import Built, built, is_nccl_tests, measurements_of, read_probes


@click.command("build", short_help="Build a machine of a probe's measurements.")
@click.argument("files", nargs=-1, required=True)
@click.option("--out", type=click.Path(dir_okay=False), required=True, help="The machine file to write; -m FILE reads it.")
@click.option("--like", shell_complete=completing.machines, help="A machine that has what was not measured (needed for GPUs).")
@click.option("--name", help="Its name in results (default: the file's name).")
@output_options
def build_command(files: tuple[str, ...], out: str, like: str | None, name: str | None, as_json: bool, quiet: bool) -> None:
    """Build a machine of FILES: what `taskflow probe`'s program wrote, or outputs of nccl-tests.

    Several files of one machine are taken together, by the medians. Measured operators keep their times; rates between measured
    sizes, curves of collectives and the program's figures are fitted, with their errors. What was not measured is as in --like, and
    is listed.

    \b
    Examples:
      taskflow machine build probe.json --like h100 --out mine.json
      taskflow machine build monday.json tuesday.json --like h200 --out mine.json
      taskflow machine build all_reduce_perf.txt --like h100 --out network.json
    """
    writable(out)
    if not out.endswith(".json"):
        raise ValueError(f"--out must end in .json, so that --machine takes it for a file; got {out}")
    base = load_machine(like) if like else None
    texts = [path for path in files if is_nccl_tests(path)]
    if texts and len(texts) < len(files):
        other = next(path for path in files if path not in texts)
        raise ValueError(f"{texts[0]} is of nccl-tests, and {other} is not; build them apart")
    found = measurements_of(texts) if texts else read_probes(files)
    result = built(found, name or Path(out).stem, base)
    save(result.machine, out)
    summary = _summary(result, list(found.missing))
    if as_json:
        emit({"written": out, **summary})
        return
    if not quiet:
        tell(_text(summary))
    tell(f"wrote {out}: {result.machine}; use it with --machine {out}")


def _summary(result: Built, missing: list[str]) -> dict[str, Any]:
    return {"machine": result.machine.name, "errors": dict(result.errors), "kept": list(result.kept), "missing": missing}


def _text(summary: dict[str, Any]) -> str:
    rows = [(what, f"{error:.1%}") for what, error in summary["errors"].items()]
    parts = [render(("fitted", "mean error"), rows, words=(0,))] if rows else []
    parts += [f"not measured: {text}" for text in (*summary["kept"], *summary["missing"])]
    return "\n".join(parts)
