"""Runs plans for some steps each, in turns, and says how long they take beside what was predicted."""

from __future__ import annotations

import argparse
import json
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import strftime
from typing import Any

import torch

from taskflow.trial.script.found import FORMAT, row_of, table
from taskflow.trial.script.ranks import TrialRanks
from taskflow.trial.script.visit import WARM_UP, visit

ROUNDS = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Try the plans that lie beside this program; a process of a visit does that alone."""
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="try.json", help="the file to write (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="of each plan that are timed, in all rounds together (default: as written)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="in which plans take turns (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of a plan in a round (default: %(default)g)")
    parser.add_argument("--module", help="FILE.py:FUNCTION that returns the module (default: as written)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--visit", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.visit:
        visit(json.loads(options.visit))
        return
    trial = json.loads(here.joinpath("plans.json").read_text())
    if options.module:
        trial["network"]["module"].pop("config", None)
        trial["network"]["module"].update(function=options.module, values={})
    steps = options.steps or trial["steps"]
    if min(steps, options.rounds) < 1:
        parser.error("--steps and --rounds must be 1 or more")
    ranks = TrialRanks(options.limit)
    if ranks.count != trial["ranks"]:
        sys.exit(
            f"try.py: these plans are for {trial['ranks']} ranks, there {'is' if ranks.count == 1 else 'are'} {ranks.count}; start "
            f"torchrun with {trial['ranks']} in all (--nnodes times --nproc-per-node), or try plans for as many as there are"
        )
    rows, about = tried(trial, ranks, options, steps, here)
    failed = all(row["error"] is not None for row in rows)
    if ranks.rank == 0:
        with open(options.out, "w") as file:
            json.dump({"format": FORMAT, "about": about, "plans": rows}, file, indent=1)
            file.write("\n")
        print(f"{table(rows, options.device == 'cuda')}\nwrote {options.out}", flush=True)
    ranks.leave()
    sys.exit(failed)


def tried(trial: Mapping[str, Any], ranks: TrialRanks, options: Any, steps: int, here: Path) -> tuple[list[Any], dict[str, Any]]:
    """Return an entry for each plan, and what they were tried on. The plans of a round follow each other, every second round in
    the opposite order; a plan that fails is not tried again."""
    plans, visits = trial["plans"], [list[Any]() for _ in trial["plans"]]
    for number in range(options.rounds):
        count = steps * (number + 1) // options.rounds - steps * number // options.rounds
        order = range(len(plans))
        for i in order if number % 2 == 0 else reversed(order):
            if count == 0 or any("error" in one for one in visits[i]):
                continue
            told = {"network": trial["network"], "file": str(here / plans[i]["file"]), "steps": count, "device": options.device}
            found = ranks.visit(told)
            visits[i].append(found)
            if ranks.rank == 0:
                _say(plans[i]["name"], found)
    about = {
        "when": strftime("%Y-%m-%dT%H:%M:%S"), "python": platform.python_version(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None), "taskflow": trial["taskflow"],
        "system": f"{platform.system()} {platform.machine()}", "kind": options.device, "ranks": ranks.count,
        "hosts": list(dict.fromkeys(ranks.together("hosts", socket.gethostname()))), "threads": torch.get_num_threads(),
        "steps": steps, "rounds": options.rounds, "warm_up": WARM_UP,
        "gpu": next((one["name"] for of in visits for visit in of for one in visit.get("ranks", ())), None),
    }  # fmt: skip
    return [row_of(plan, of) for plan, of in zip(plans, visits)], about


def _say(name: str, found: Mapping[str, Any]) -> None:
    """One line of a visit; of one that failed what its process printed last, too."""
    if "error" not in found:
        seconds = found["seconds"]
        print(f"{name}: {len(seconds)} steps, {1e3 * min(seconds):.4g} to {1e3 * max(seconds):.4g} ms", flush=True)
        return
    print(f"{name}: failed: {found['error']}", flush=True)
    if found["log"]:
        print("\n".join(f"    {line}" for line in found["log"].splitlines()), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
