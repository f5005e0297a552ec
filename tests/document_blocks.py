"""The fenced blocks of README.md and docs/: what is run of them, what is compared, and what is left out for which reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANY_FENCE = re.compile(r"^\s*(?:```|~~~)", re.MULTILINE)

CLUSTER = "needs another MPI than the one of the tests"
NOT_RUN: dict[str, str] = {
    r"python3 -m venv \.venv": "makes an environment: test_package.py makes one and installs taskflow there",
    r"source \.venv/bin/activate": "the tests' environment stands for it",
    r"pip install .*": "needs a package index",
    r".*--device gpu.*": "needs a GPU",
    r"pip download .*": "needs a package index",
    r"python3 benchmarks/gpu\.py --wheels .*": "needs a GPU; tests/gpu/test_gpu_benchmark.py runs it part by part",
    r"taskflow search resnet50\.onnx .*": "needs onnx and a file; tests/models/test_onnx.py runs a small one",
    r"taskflow (search|fit) hf:.*": "needs transformers and minutes; tests/models/test_huggingface.py runs a small one",
    r"python benchmarks/.*": "takes minutes to hours on a quiet machine; tests/test_benchmark_options.py has it parse its options",
    r"python try_jax\.py": "needs JAX; tests/export/test_jax_export.py runs it",
    r"module load .*": CLUSTER,
    r"python -m pip uninstall mpich": CLUSTER,
    r"python probe_jax\.py.*": "needs JAX; tests/probe/test_probe_jax.py runs it",
    r"torchrun --nproc-per-node 8 probe\.py.*": "needs eight GPUs; tests/probe runs a probe on gloo ranks",
    r"taskflow (machine build probe\.json|simulate llama\.py|profile llama\.py).*": "goes on with a probe: see tests/probe",
    r"MPICC=.* -m pip install .*": CLUSTER,
    r"python tests/runtime/random_failures\.py .*": "takes an hour; tests/runtime/test_elastic.py draws some of these failures",
}
"""Lines of sh blocks that no test runs, as regular expressions of whole lines, with the reason."""

SCRIPTS_NOT_RUN = {
    "#SBATCH": "needs Slurm; bash reads it without running it, and the program it starts runs elsewhere on the page",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "needs four nodes; tests/export/test_elastic_export.py starts four agents so",
}

TEXTS_NOT_COMPARED = {
    "bash:  eval": "what to write into the start files of three shells",
    "plan = importlib.import_module": "lines of a training program; tests/export/train_elastic.py is one",
    "plan       predicted ms": "times of one machine; tests/trial tries plans on two ranks",
    "with torch.profiler.profile() as profiler:": "lines of a training program; tests/probe profiles one",
    "start 0 on 4 nodes": "needs Slurm; tests/runtime/test_slurm.py runs that job",
    "node0:4": "an MPI host file; the command below it runs with one of this machine's name",
}
"""text blocks, by the start of their first line, that are no output."""

SLOW = (
    "alexnet.py", "inception.py", "resnet.py", "rnntc.py", "nmt.py", "transformer.py", "/gpt.py", " train ", " profile ",
    " --devices 64 ", "machine measure", " --to torch ", "torchrun ", "mixed.json", "plan.json softmax", "plan.json --what-if",
    "rnnlm.py --processors 4", "rnnlm.py --mapper data", "--size 405B", "--size 70B", "--size 8B ", " fit llama ", "-n 1024 ",
)
"""Commands with one of these words run in make test-slow only; the examples' own tests start each program otherwise,
tests/optimizer searches machines of two kinds, and tests/cli and tests/export start the others."""
AS_README = ("docs/index.md", "docs/guide/training.md")
"""Pages of which those commands do that start the language model's program: README.md starts it as often, and in all its ways."""
SLOW_PYTHON = (
    "runtime.calibrate", 'costs="measured"', "torch.export.save(", 'search(graph(), taskflow.load_machine("a100", 8)',
)
"""So do blocks of Python with one of these: tests/machine and tests/optimizer measure otherwise, tests/models exports
and searches."""
SLOW_PAGES = (
    "docs/guide/cluster.md", "docs/guide/export.md", "docs/guide/gpus.md", "docs/guide/machines.md", "docs/guide/pytorch.md",
    "docs/guide/try.md",
)
"""Pages of which all commands do: tests/cli, tests/models, tests/trial and tests/export start such commands otherwise."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the number of lines before its first, and its text."""

    language: str
    line: int
    text: str

    @property
    def slow(self) -> bool:
        """Does this block of Python run in make test-slow only?"""
        return any(word in self.text for word in SLOW_PYTHON)

    @property
    def lines(self) -> list[str]:
        """Its lines without comments at their ends, the empty ones left out; a backslash joins a line and the next."""
        joined = re.sub(r"\s*\\\n\s*", " ", self.text)
        found = (re.sub(r"\s+# .*$", "", line).strip() for line in joined.splitlines())
        return [line for line in found if line and not line.startswith("# ")]


@dataclass(frozen=True)
class Command:
    """A line of an sh block, and the output that is shown below it."""

    text: str
    shown: str | None
    page: Path

    @property
    def slow(self) -> bool:
        again = "rnnlm.py" in self.text and self.page in [ROOT / name for name in AS_README]
        return again or any(word in self.text for word in SLOW) or self.page in [ROOT / name for name in SLOW_PAGES]


def blocks(page: Path) -> list[Block]:
    """All blocks of a page in order."""
    text = page.read_text()
    return [Block(m[1], text.count("\n", 0, m.start(2)), m[2]) for m in FENCE.finditer(text)]


def with_output(page: Path) -> list[tuple[Block, str | None]]:
    """Every block with the text block right below it, None if none is."""
    found, lines = blocks(page), page.read_text().splitlines()
    result: list[tuple[Block, str | None]] = []
    for block, following in zip(found, [*found[1:], None]):
        end = block.line + block.text.count("\n")  # the line of the closing fence
        between = lines[end + 1 : following.line - 1] if following is not None else []
        shown = following is not None and following.language == "text" and not "".join(between).strip()
        result.append((block, following.text if following is not None and shown else None))
    return result


def python_blocks(page: Path) -> list[tuple[Block, str | None]]:
    """The Python blocks of a page, with what they should print."""
    return [(block, shown) for block, shown in with_output(page) if block.language == "python"]


def reason_not_run(line: str) -> str | None:
    """Why nobody runs this line; None if somebody does."""
    return next((reason for pattern, reason in NOT_RUN.items() if re.fullmatch(pattern, line)), None)


def commands(page: Path) -> list[Command]:
    """The lines of a page's sh blocks that are run, in order. An output belongs to the last line of its block."""
    result = []
    for block, shown in with_output(page):
        if block.language == "sh":
            lines = block.lines
            kept = [None] * (len(lines) - 1) + [shown]
            result += [Command(line, out, page) for line, out in zip(lines, kept) if reason_not_run(line) is None]
    return result


def files(page: Path) -> dict[str, str]:
    """Python blocks whose first line is ``# name.py`` are files."""
    named = ((re.match(r"# (\w+\.py)\n", block.text), block) for block, _ in python_blocks(page))
    return {match[1]: block.text for match, block in named if match}


def matches(shown: str, printed: str) -> bool:
    """Is this the output that is shown? ``...`` stands for anything within a line, and a line of it alone for any lines. How far
    a table's columns stand apart is not compared: rich's versions differ by a column."""
    lines = [re.escape(line).replace(re.escape("..."), ".*") + "\n" for line in _closed_up(shown)]
    pattern = "".join("(?:.*\n)*?" if line == ".*\n" else line for line in lines)
    text = "".join(f"{line}\n" for line in _closed_up(printed))
    return re.fullmatch(pattern, text) is not None


def _closed_up(text: str) -> list[str]:
    return [re.sub("─+", "─", re.sub(r"(?<=\S) {2,}", "  ", line.rstrip())) for line in text.strip().splitlines()]
