"""probe_program.py PROBE [--nvml]: runs a probe's file on a GPU that is not there, whose clock goes by given rates."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
from fake_cuda import Rates, fake_cuda

FACTORS = {"all_reduce": (2, 360e9), "all_gather": (1, 330e9), "reduce_scatter": (1, 330e9), "all_to_all": (1, 300e9)}


def took(what: str, nbytes: int, count: int) -> float:
    """Seconds of a message among the GPUs of a node."""
    times, rate = FACTORS.get(what, (1, 300e9))
    return 12e-6 + times * nbytes * (count - 1) / count / rate


def main() -> None:
    path, rank, ranks = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    spec = importlib.util.spec_from_file_location("probe", path)
    assert spec is not None and spec.loader is not None
    probe: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules["probe"] = probe
    spec.loader.exec_module(probe)
    for name, value in (("CHUNK_SECONDS", 1e-6), ("LEAST_CHUNKS", 1), ("MOST_CHUNKS", 1), ("LEAST_ROUNDS", 1), ("MOST_ROUNDS", 2)):
        assert hasattr(probe, name)
        setattr(probe, name, value)  # each is measured once: the clock is exact
    nvml, words = "--nvml" in sys.argv, [word for word in sys.argv[2:] if word != "--nvml"]
    with fake_cuda(rank, ranks, Rates(messages=took), nvml) as cuda, mock.patch.object(probe, "perf_counter", cuda.clock):
        probe.main(["--out", f"probe{rank}.json", "--seconds", "20", *words])
    found = {"host": cuda.host, "waited": sorted(set(cuda.waited)), "seen": sorted(cuda.seen)}
    Path(f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
