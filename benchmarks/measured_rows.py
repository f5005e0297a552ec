"""Rows of files of measured steps: the network, machine, program and plan of each, as it ran.

The files are not part of the project; ../shared/measured/README.md of the data says what they are. Each reader takes a file with
the columns that it names, so that other rows with the same columns can be predicted.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from decoders import Decoder

GB, GIB = 1e9, 2**30
FAST_PASS = 300e12  # operations a second of a micro-batch that certainly does not stall
STALL = 0.8  # seconds that a micro-batch takes beyond that where a pipeline over nodes stalls


@dataclass(frozen=True, slots=True)
class StepRow:
    """A measured step. ``program``: its name, and after colons its kernel of attention and ``fused`` for fused norms, where rows
    differ in these. ``of``: rows with the same are plans for one task. ``seconds`` None: the run did not fit. ``memory``:
    bytes of the fullest GPU, 0 if not known. ``healthy``: of the rows of a group by which costs are judged without stalls."""

    group: str
    of: str
    machine: str
    gpus: int
    program: str
    decoder: Decoder
    batch: int
    plan: str
    seconds: float | None
    memory: float = 0.0
    healthy: bool = True
    stalls: bool = False
    card: float = 0.0  # bytes a second of each GPU's network card, if not the preset's


def read(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a file, which may be packed."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from csv.DictReader(file)


def nanotron_stages(decoder: Decoder, count: int) -> list[int]:
    """Layers of each of so many stages as nanotron deals them (nanotron/models/base.py, build_model): blocks follow one another,
    and the one with which a stage's weights exceed its part of all weights that multiply is its last. Plans have no stages
    without layers, so the last ones, which may have the scores alone, get one from those before."""
    d = decoder
    layer, head = 4 * d.hidden**2 + 3 * d.inner * d.hidden, d.vocabulary * d.hidden
    stages, stage = [0] * count, 0
    for number in range(1, d.layers + 1):
        stages[stage] += 1
        if stage < count - 1 and number * layer * count > (d.layers * layer + head) * (stage + 1):
            stage += 1
    for lacking in reversed(range(count)):
        if not stages[lacking]:
            stages[max(i for i in range(lacking) if stages[i] > 1)] -= 1
            stages[lacking] = 1
    return stages


def ultrascale(path: Path) -> Iterator[StepRow]:
    """nanotron on H100 with EFA between nodes. It gathers what a tensor-parallel group shares again for the backward pass.
    Without ZeRO, DistributedDataParallel sums gradients beside the last backward pass."""
    for row in read(path):
        n = {key: int(row[key]) for key in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "tied", "gpus", "seq", "gbs",
                                            "mbs", "grad_acc", "dp", "pp", "tp", "zero")}  # fmt: skip
        decoder = Decoder(
            "llama", n["layers"], n["hidden"], n["heads"], n["kv_heads"], n["ffn"], n["vocab"], n["seq"], bool(n["tied"])
        )
        regather = " regather" if n["tp"] > 1 else ""
        bucket = " bucket=6553600" if n["zero"] else ""  # 25 MiB, as without ZeRO
        stages = f" stages={','.join(map(str, nanotron_stages(decoder, n['pp'])))}" if n["pp"] > 1 else ""
        late = " overlap=none" if n["zero"] else ""
        plan = f"t{n['tp']}{regather} p{n['pp']} d{n['dp']} mb{n['mbs']} zero{n['zero']}{late}{bucket}{stages}"
        seconds = float(row["step_s"]) if row["step_s"] else None
        work = 6 * decoder.weights * n["mbs"] * n["seq"] / (n["tp"] * n["pp"]) / FAST_PASS
        stalls = seconds is not None and n["pp"] > 1 and n["gpus"] > 8 and seconds / n["grad_acc"] > work + STALL
        healthy = (n["pp"] == 1 or n["gpus"] <= 8) and n["tp"] <= 8 and n["gpus"] <= 256
        yield StepRow(
            "ultrascale", f"{row['model']} on {n['gpus']}", "p5", n["gpus"], "nanotron", decoder, n["gbs"], plan, seconds,
            float(row["mem_gb"] or 0) * GB, healthy, stalls,
        )  # fmt: skip


ATTENTION = {"flash_attention2": "flash-attention-2", "flash_attentionv1.0.8": "flash-attention-1", "fused": "fused-softmax",
             "torch": "unfused"}  # fmt: skip


def layouts(path: Path) -> Iterator[StepRow]:
    """Llama on A100 by the authors' own program, which is built as Megatron-LM is; the vocabulary follows from their utilisation
    of the peak."""
    for row in read(path):
        n = {key: int(row[key]) for key in ("layers", "hidden", "heads", "ffn", "seq", "gpus", "gbs", "mbs", "tp", "pp", "dp")}
        decoder = Decoder("llama", n["layers"], n["hidden"], n["heads"], n["heads"], n["ffn"], 128_000, n["seq"])
        alone = "" if row["sequence_parallel"] == "True" or n["tp"] == 1 else " nosp"
        again = " recompute=whole" if row["recompute"] == "every_layer" else ""
        plan = f"t{n['tp']}{alone} p{n['pp']} d{n['dp']} mb{n['mbs']} zero1 overlap=none{again}"
        kernel, _, norms = row["kernel"].partition(" + ")
        program = f"aleph-alpha:{ATTENTION[kernel]}" + (":fused" if norms else "")
        yield StepRow(
            "layouts", f"{row['model']}, {n['seq']} tokens", "a100", n["gpus"], program, decoder, n["gbs"], plan,
            float(row["step_s"]) if row["status"] == "ok" else None,
        )  # fmt: skip


PROGRAMS = {"llm-foundry": "fsdp", "fms-fsdp": "fsdp-compiled"}
CARDS = {"fms-fsdp": 50e9 / 8}  # bytes a second for each GPU


def fsdp(path: Path) -> Iterator[StepRow]:
    """Sharded data parallelism on H100 and A100. The rows' plans are in notation."""
    for row in read(path):
        n = {key: int(row[key]) for key in ("gpus", "layers", "hidden", "heads", "key_heads", "inner", "vocabulary", "sequence",
                                            "batch")}  # fmt: skip
        gpt = row["network"].startswith("GPT")
        decoder = Decoder(
            "gpt" if gpt else "llama", n["layers"], n["hidden"], n["heads"], n["key_heads"], n["inner"], n["vocabulary"],
            n["sequence"], "tied" in row["network"],
        )
        machine = row["gpu"].lower().partition("-")[0]
        yield StepRow(
            f"fsdp {machine}", f"{row['source']}, {n['gpus']} GPUs, {decoder.weights / 1e9:.3g} billion", machine, n["gpus"],
            PROGRAMS.get(row["source"], row["source"]), decoder, n["batch"], row["plan"], float(row["measured_seconds"]),
            card=CARDS.get(row["source"], 0.0),
        )  # fmt: skip


LLAMA_70B = {"hidden": 8192, "heads": 64, "key_heads": 8, "inner": 28_672, "vocabulary": 128_256, "sequence": 4096}


def b200(path: Path) -> Iterator[StepRow]:
    """Llama 3 70B cut short, under Megatron-LM with Transformer Engine."""
    for row in read(path):
        n = {key: int(row[key]) for key in ("layers", "gpus", "tensor", "pipeline", "data", "micro_batches")}
        decoder = Decoder("llama", n["layers"], **LLAMA_70B)
        regather = " regather" if n["tensor"] > 1 else ""
        plan = f"t{n['tensor']}{regather} p{n['pipeline']} d{n['data']} mb1 zero1"
        yield StepRow(
            "b200", f"{n['micro_batches']} micro-batches", "b200", n["gpus"], "megatron", decoder, n["data"] * n["micro_batches"],
            plan, float(row["measured_ms"]) / 1e3, float(row["allocated_gib"]) * GIB,
        )  # fmt: skip


READERS = {"ultrascale": ultrascale, "layouts": layouts, "fsdp": fsdp, "b200": b200}


def step_files(data: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder that have readers, with the readers' names: ``fsdp.csv``, ``fsdp-more.csv``."""
    for path in sorted(data.glob("*.csv")):
        name = re.split(r"[-.]", path.name)[0]
        if name in READERS:
            yield name, path


@dataclass(frozen=True, slots=True)
class ProductRow:
    """A measured matrix product (m, k) x (k, n)."""

    dtype: str
    m: int
    n: int
    k: int
    seconds: float


def products(path: Path) -> list[ProductRow]:
    """Matrix products of a GPU, as measured; times are in milliseconds."""
    return [
        ProductRow(row["gemm_dtype"], int(row["m"]), int(row["n"]), int(row["k"]), float(row["latency"]) / 1e3)
        for row in read(path)
    ]
