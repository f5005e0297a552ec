"""Train an LSTM language model on real text under a strategy that you can swap.

    mpirun -n 16 python examples/rnnlm.py                       # 16 ranks, data parallel
    mpirun -n 16 python examples/rnnlm.py --mapper expert       # layers on different processors
    mpirun -n 16 python examples/rnnlm.py --mapper search       # finds a plan first, for 5 seconds
    python examples/rnnlm.py --processors 4                     # four virtual processors in one process
    python examples/rnnlm.py --data book.txt --steps 1000 --save-strategy plan.json

The default text is the source of Python's own standard library, which every machine has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import click

import taskflow
from taskflow.models.rnnlm import RNNLMConfig, rnnlm
from taskflow.runtime.launch import LaunchError, launcher
from taskflow.runtime.transport import Transport
from taskflow.training import Adam, LanguageModelBatches, UpdateRule, ZarembaDecay, load_corpus, perplexity
from taskflow.training.language_model import train
from taskflow.training.plan import SEARCH_BUDGET, plan


@dataclass(frozen=True)
class Preset:
    """Sizes and training settings. ``per_processor``: the batch is for each processor, not for all together."""

    model: RNNLMConfig
    rule: UpdateRule
    schedule: ZarembaDecay | None
    clip_norm: float
    steps: int
    per_processor: bool = False


PRESETS = {
    "small": Preset(
        RNNLMConfig(batch=256, steps=20, vocabulary=4000, hidden=128), Adam(lr=4e-3), None, clip_norm=5.0, steps=150
    ),
    # Zaremba et al.'s large model trains so; the sizes are those of the paper (2 layers of 2048, 40 steps).
    "paper": Preset(
        RNNLMConfig(batch=64, steps=40, vocabulary=10_000, hidden=2048, dropout=0.65),
        taskflow.SGD(lr=1.0), ZarembaDecay(lr=1.0, after_epoch=14, factor=1.15), clip_norm=10.0, steps=1000,
        per_processor=True,
    ),
}


def on_first_rank(transport: Transport, act: Callable[[], object]) -> None:
    """Do it on rank 0 only; if it fails, every rank raises the error."""
    failed: OSError | None = None
    if transport.rank == 0:
        try:
            act()
        except OSError as error:
            failed = error
    if (failed := transport.broadcast(failed)) is not None:
        raise failed


@click.command(help=__doc__.split("\n\n")[0], epilog="Swap --mapper and the losses stay the same: only the speed changes.")
@click.option("--mapper", default="data", show_default=True, metavar="NAME",
              help="data, model, expert, search, round-robin, random, a strategy FILE.json, or package.module:Class.")
@click.option("--search-budget", default=SEARCH_BUDGET, show_default=True, metavar="TIME",
              help="How long --mapper search may take: 5s, 2m, or 20000p for proposals.")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="small", show_default=True)
@click.option("--processors", type=click.IntRange(1), help="Virtual processors (default: one a rank).")
@click.option("--data", multiple=True, metavar="FILE", help="Text file to train on; may be repeated.")
@click.option("--ptb", metavar="DIR", help="Folder with ptb.train.txt, ptb.valid.txt and ptb.test.txt.")
@click.option("--level", type=click.Choice(["word", "byte"]), default="word", show_default=True)
@click.option("--steps", type=click.IntRange(1), help="Training steps (default: the preset's).")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True)
@click.option("--watchdog", type=click.FloatRange(0), metavar="SECONDS", help="End the job if a rank waits longer.")
@click.option("--save-strategy", metavar="FILE", help="Write the strategy that is used.")
@click.option("--json", "as_json", is_flag=True, help="Last line of stdout: one JSON object with the results.")
@click.option("--quiet", is_flag=True, help="No progress display.")
def main(
    mapper: str, search_budget: str, preset: str, processors: int | None, data: tuple[str, ...], ptb: str | None, level: str,
    steps: int | None, seed: int, dtype: str, watchdog: float | None, save_strategy: str | None, as_json: bool,
    quiet: bool,
) -> None:
    try:
        transport = taskflow.connect(watchdog_seconds=watchdog)
    except (LaunchError, ValueError) as error:
        if (started := launcher()) is None or started.rank == 0:
            click.echo(f"rnnlm.py: {error}", err=True)
        sys.exit(2)
    first = transport.rank == 0
    chosen = PRESETS[preset]
    machine = taskflow.host(processors or transport.size)
    count = len(machine.processors)

    def say(text: str) -> None:
        if first and not quiet:
            click.echo(text, err=True)

    try:
        corpus = load_corpus(data, ptb, level=level, vocabulary_size=chosen.model.vocabulary)
        batch = chosen.model.batch * (count if chosen.per_processor else 1)
        config = replace(chosen.model, batch=batch, vocabulary=len(corpus.vocabulary))
        batches = LanguageModelBatches(corpus.split("train"), batch, config.steps, dtype="int64")
        graph = rnnlm(config, dtype)
        strategy, chooser = plan(
            mapper, graph, machine, transport, rule=chosen.rule, clip_norm=chosen.clip_norm, seed=seed,
            budget=search_budget, say=say,
        )
        if save_strategy:
            on_first_rank(transport, lambda: taskflow.save_strategy(strategy, graph, machine.name, save_strategy))
        valid = corpus.split("valid")
        executor = taskflow.Executor(
            graph, strategy, chosen.rule, transport=transport, machine=machine, seed=seed, clip_norm=chosen.clip_norm,
            mapper=chooser,
        )
    except (ValueError, OSError, ImportError) as error:  # what the user can mend: no traceback, said once
        if first:
            click.echo(f"rnnlm.py: {error}", err=True)
        transport.close()
        sys.exit(2)
    say(f"{graph}\n{corpus}\n{transport.size} ranks, {count} processors, mapper {mapper}: {executor.describe()}")
    result = train(
        executor, batches, steps or chosen.steps, schedule=chosen.schedule, quiet=quiet or not first, say=say,
        valid=LanguageModelBatches(valid, batch, config.steps, dtype="int64")
        if len(valid) > batch * config.steps else None,
    )
    moved = executor.moved_bytes_per_step()
    if first:
        report = {
            "ranks": transport.size,
            "processors": count,
            "mapper": mapper,
            "steps": len(result.losses),
            "loss_first": result.losses[0],
            "loss_last": result.losses[-1],
            "perplexity_valid": perplexity(result.valid_losses[-1]) if result.valid_losses else None,
            "tokens_per_second": result.tokens_per_second,
            "bytes_moved_per_step": moved,
            "seconds": result.seconds,
            "seed": seed,
            "losses": result.losses,
        }
        if not quiet:
            click.echo(
                f"loss {report['loss_first']:.3f} -> {report['loss_last']:.3f} in {report['steps']} steps, "
                f"{result.tokens_per_second:,.0f} tokens/s, {moved / 1e6:.1f} MB moved a step", err=True,
            )
        if as_json:
            click.echo(json.dumps(report))
    executor.close()
    transport.close()


if __name__ == "__main__":
    main()
