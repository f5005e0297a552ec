"""Valid files of every kind, changed at random, given to the command: a result, or one line and exit code 2.

``python tests/test_hostile_files.py 5000 [FIRST] [KIND ...]`` tries that many and prints what goes wrong.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

import taskflow
from taskflow.cli.main import main
from taskflow.mapper import save
from taskflow.models import build
from taskflow.training.networks import program

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "models"))
LIMIT_SECONDS = 60  # of one file, on a busy machine
ON = ("-m", "p100", "-n", "2")
VALUES = [
    None, True, False, 0, -1, 1, 2, 3, 7, 2.5, "", "x", "none", "silu", "1", [], [1], [0, 0], {}, {"x": 1}, 10**30, -(10**30),
    2**31, 2**62, 10**9, 10**6, 1e300, 1e-320, -0.0, [[1, 2]], "é" * 99, "\n", "a\nb", float("nan"), float("inf"), -float("inf"),
]  # fmt: skip


# ---- changes ---------------------------------------------------------------------------------------------------------
def bytes_changed(data: bytes, random: Random) -> bytes:
    """Its bytes with some changed, removed or added; or a part of it."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 5])):
        at, kind = random.randrange(len(changed) or 1), random.choice(["bit", "byte", "cut", "drop", "add"])
        if kind == "cut":
            del changed[at:]
        elif kind == "drop":
            del changed[at : at + random.choice([1, 4, 30])]
        elif kind == "add":
            changed[at:at] = bytes(random.randrange(256) for _ in range(random.choice([1, 8])))
        elif changed:
            at %= len(changed)
            changed[at] = changed[at] ^ 1 << random.randrange(8) if kind == "bit" else random.randrange(256)
    return bytes(changed)


def places(content: Any) -> list[tuple[Any, Any]]:
    """Every (table or list, key) in it."""
    inner = list(content.items()) if isinstance(content, dict) else list(enumerate(content)) if isinstance(content, list) else []
    return [(content, key) for key, _ in inner] + [place for _, value in inner for place in places(value)]


def json_changed(content: Any, random: Random) -> Any:
    """A copy with a few values, keys or entries changed."""
    content = copy.deepcopy(content)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        if not (there := places(content)):
            break
        where, key = random.choice(there)
        other_table, other_key = random.choice(there)
        kind = random.choice(["drop", "rename", "value", "value", "value", "number", "number", "move", "twice"])
        old = where[key]
        if kind == "drop":
            del where[key]
        elif kind == "rename" and isinstance(where, dict):
            where[random.choice([key[:-1], key[::-1], f"{key}s", key.upper(), "", f"{key}\n"])] = where.pop(key)
        elif kind == "number" and isinstance(old, (int, float)) and not isinstance(old, bool):
            where[key] = random.choice([-old, old + 1, old - 1, old * 2, old * 10**9, old / 3, str(old), [old], old * 10**40, 0])
        elif kind == "move":
            where[key] = copy.deepcopy(other_table[other_key])
        elif kind == "twice" and isinstance(where, list):
            where.append(copy.deepcopy(old))
        else:
            where[key] = random.choice(VALUES)
    return content


def proto_changed(message: Any, random: Random) -> Any:
    """A copy of a protobuf message with a few of its fields changed."""
    message = copy.deepcopy(message)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        if not (fields := list(_fields(message))):
            break
        for_change = random.choice(fields)
        with suppress(ValueError, TypeError):  # a number that its type does not hold
            _change(*for_change, random, fields)
    return message


def _fields(message: Any) -> Iterator[tuple[Any, Any]]:
    for field, value in message.ListFields():
        yield message, field
        if field.message_type is not None:
            for each in value if isinstance(value, (list, tuple)) or hasattr(value, "add") else [value]:
                yield from _fields(each)


def _change(message: Any, field: Any, random: Random, others: list[tuple[Any, Any]]) -> None:
    value = getattr(message, field.name)
    names = [getattr(m, f.name) for m, f in others if f.name in ("name", "op_type", "domain")]
    if hasattr(value, "extend"):
        at, kind = random.randrange(len(value)), random.choice(["drop", "twice", "other", "clear", "swap"])
        if kind == "clear":
            message.ClearField(field.name)
        elif kind == "drop":
            del value[at]
        elif kind == "twice":
            value.extend([value[at]])
        elif field.message_type is None:
            value[at] = _other(value[at], random, names)
        return
    if field.message_type is not None or random.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _other(value, random, names))


def _other(value: Any, random: Random, names: list[str]) -> Any:
    if isinstance(value, str):
        return random.choice([*names, "", "x", "Conv", "Loop", "If", f"{value}s", "a\nb", "é" * 99])
    if isinstance(value, bytes):
        return bytes_changed(value, random)
    if isinstance(value, float):
        return random.choice([float("nan"), float("inf"), -1.0, 0.0, 1e30, -value])
    return random.choice([0, -1, 1, 2, 3, 7, value + 1, value - 1, -value, value * 1000, 2**31 - 1, 2**62, -(2**40)])


# ---- kinds of files --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Kind:
    """``made``: the bytes of a changed file, by chance; ``words``: the commands that read a file of this name."""

    suffix: str
    made: Callable[[Random], bytes]
    words: Callable[[str], list[tuple[str, ...]]]


def of_json(contents: Callable[[], list[Any]]) -> Callable[[Random], bytes]:
    """Valid contents, changed as JSON or as bytes."""

    def made(random: Random) -> bytes:
        content = random.choice(contents())
        if random.random() < 0.15:
            return bytes_changed(json.dumps(content).encode(), random)
        return json.dumps(json_changed(content, random)).encode()

    return made


@cache
def plans() -> list[Any]:
    graph, machine, found = build("MLP", preset="small"), taskflow.machine.load_machine("p100", 2), []
    path = Path(taskflow.__file__).parent / "machines"  # never written: `save` goes to a temporary file
    made = {"model": "MLP", "machine": "p100", "devices": 2, "batch": None, "size": "small", "rule": "sgd", "set": {}}
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        for seed in range(2):
            result = taskflow.search(graph, machine, budget="20p", seed=seed)
            save(result.strategy, graph, "p100", path, made, result.as_json())
            found.append(json.loads(path.read_text()))
        runner = CliRunner().invoke(main, ["search", "gpt-2", "--size", "small", *ON, "--budget", "30p", "--out", str(path)])
        assert runner.exit_code == 0, runner.output
        return [*found, json.loads(path.read_text())]


@cache
def machines() -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted((ROOT / "taskflow" / "machines").glob("*.json"))]


@cache
def programs() -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted((ROOT / "taskflow" / "programs").glob("*.json"))]


@cache
def checkpoint() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        words = ["--steps", "1", "--checkpoint", str(path), "--trace", str(Path(folder) / "run.json"), "--quiet"]
        done = CliRunner().invoke(program("mlp"), words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        trace_content.append(json.loads((Path(folder) / "run.json").read_text()))
        return path.read_bytes()


trace_content: list[Any] = []


def traces() -> list[Any]:
    checkpoint()
    return trace_content


def changed_checkpoint(random: Random) -> bytes:
    """Bytes changed anywhere, or the header as JSON, with our metadata inside it as JSON too."""
    data = checkpoint()
    length = int.from_bytes(data[:8], "little")
    if random.random() < 0.3:
        return bytes_changed(data, random)
    header = json.loads(data[8 : 8 + length])
    texts = header["__metadata__"]
    if random.random() < 0.5:
        texts["taskflow-checkpoint"] = json.dumps(json_changed(json.loads(texts["taskflow-checkpoint"]), random))
        if random.random() < 0.8:  # as a version that has no checksums
            del texts["taskflow-crc32"]
            texts["taskflow-checkpoint"] = texts["taskflow-checkpoint"].replace('"version": 2', '"version": 1')
    else:
        header = json_changed(header, random)
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + data[8 + length :]


def changed_onnx(random: Random) -> bytes:
    from onnx_cases import MAKERS, case_of

    model = case_of(random.choice(list(MAKERS)), random.randrange(5))
    if random.random() < 0.15:
        return bytes_changed(model.SerializeToString(), random)
    return bytes(proto_changed(model, random).SerializeToString())


SMALL = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
              "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50, "hidden_act": "silu",
              "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": False,
              "torch_dtype": "bfloat16", "attention_bias": False, "rope_scaling": None},
    "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_layer": 1, "n_head": 4,
             "n_positions": 64, "vocab_size": 50, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
    "vit": {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32, "patch_size": 16, "num_channels": 3,
            "hidden_act": "gelu", "id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}},
    "t5": {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 32, "d_kv": 8, "d_ff": 48,
           "num_layers": 1, "num_heads": 4, "vocab_size": 50, "feed_forward_proj": "relu", "relative_attention_num_buckets": 8},
    "mixtral": {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
                "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50,
                "num_local_experts": 2, "num_experts_per_tok": 1, "max_position_embeddings": 64},
}  # fmt: skip
RULES = {"fc*": {"devices": [0, 1], "max_degree": {"n": 2}, "sync": "ring/every"}, "fc1": {"forbid": ["n"], "max_pieces": 4}}
MLP = ("mlp", "--size", "small")
KINDS = {
    "plan": Kind(".json", of_json(plans), lambda f: [
        ("strategy", "show", f), ("strategy", "check", f), ("explain", f), ("simulate", *MLP, *ON, "--strategy", f),
        ("report", f, "--out", f"{f}.html"), ("export", f, "--to", "onnx", "--out", f"{f}.onnx", "--nearest")]),
    "machine": Kind(".json", of_json(machines), lambda f: [("machine", "show", f), ("simulate", *MLP, "-m", f, "-n", "2")]),
    "program": Kind(".json", of_json(programs), lambda f: [("simulate", "gpt-2", "--size", "small", *ON, "--program", f)]),
    "constraints": Kind(".json", of_json(lambda: [RULES]), lambda f: [
        ("search", *MLP, *ON, "--budget", "3p", "--constraints", f)]),
    "trace": Kind(".json", of_json(traces), lambda f: [("profile", "--trace", f)]),
    "checkpoint": Kind(".safetensors", changed_checkpoint, lambda f: [
        ("train", "mlp", "--steps", "2", "--quiet", "--resume", f)]),
    "onnx": Kind(".onnx", changed_onnx, lambda f: [
        ("simulate", f, *ON, "--set", "loss=none"), ("simulate", f, *ON, "--batch", "2")]),
    "hf": Kind(".json", of_json(lambda: list(SMALL.values())), lambda f: [
        ("simulate", f"hf:{f}", *ON, "--batch", "2", "--set", "steps=8")]),
}  # fmt: skip


# ---- verdicts --------------------------------------------------------------------------------------------------------
@contextmanager
def limited() -> Iterator[None]:
    """What takes too long raises TimeoutError there."""

    def late(*_: Any) -> None:
        raise AssertionError(f"no answer in {LIMIT_SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def wrong_with(words: tuple[str, ...]) -> str:
    """What is wrong with the answer of a command; empty if nothing is."""
    with limited(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = CliRunner().invoke(main, list(words))
    notes, waiting = ("note: ", "from_onnx: ", "from_torch: ", "hf: "), "reading the network ..."  # on a slow machine
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.endswith(waiting)]
    said = [line for line in lines if not line.startswith(notes)]
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        import traceback

        last = traceback.extract_tb(done.exc_info[2])[-1] if done.exc_info else None
        return f"raised {type(done.exception).__name__}: {done.exception} ({last.filename}:{last.lineno})" if last else "raised"
    if done.exit_code in (0, 1):
        return ""
    if done.exit_code != 2 or not said or len(said) > 1 or len(said[0]) > 2000 or "Traceback" in done.stderr:
        return f"exit code {done.exit_code}: {said[:3]}"
    theirs = "does not take the config: " in said[0]  # transformers' own words, which name the entry
    return f"unclear: {said[0]}" if not theirs and any(word in said[0] for word in UNCLEAR) else ""


# What Python says of a mistake in a program, and not of one in a file.
UNCLEAR = ("object has no attribute", "NoneType", "unsupported operand", "not subscriptable", "list index out of range",
           "codec can't", "object is not iterable", "unexpected keyword", "KeyError: ", "IndexError: ", "AttributeError: ",
           "positional argument", "math domain", "AssertionError")  # fmt: skip


def tried(kind: str, number: int, folder: Path) -> str:
    """What is wrong with the answer to changed file ``number`` of a kind; empty if nothing is."""
    random, about = Random(f"{kind} {number}"), KINDS[kind]
    path = folder / f"{kind}{number}{about.suffix}"
    path.write_bytes(about.made(random))
    wrong = wrong_with(random.choice(about.words(str(path))))
    if not wrong:
        path.unlink()
    return wrong


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_gives_a_result_or_one_line(kind: str, tmp_path: Path) -> None:
    skip_without(kind)
    for number in range(4 if kind == "hf" else 12):
        assert not (wrong := tried(kind, number, tmp_path)), f"{kind} {number}: {wrong}"


@pytest.mark.slow
@pytest.mark.timeout(5000)
@pytest.mark.parametrize("kind", KINDS)
def test_many_changed_files(kind: str, tmp_path: Path) -> None:
    skip_without(kind)
    found = [f"{kind} {n}: {wrong}" for n in range(200 if kind == "hf" else 700) if (wrong := tried(kind, n, tmp_path))]
    assert not found, "\n".join(found)


def skip_without(kind: str) -> None:
    for package in {"onnx": ("onnx",), "hf": ("torch", "transformers"), "checkpoint": ("safetensors",)}.get(kind, ()):
        pytest.importorskip(package)


if __name__ == "__main__":
    faulthandler.enable()
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    place = Path(sys.argv[3] if len(sys.argv) > 3 else "/tmp/hostile")
    place.mkdir(exist_ok=True)
    for name in sys.argv[4:] or KINDS:
        for at in range(first, first + count):
            try:
                verdict = tried(name, at, place)
            except AssertionError as error:
                verdict = str(error)
            if verdict:
                print(name, at, verdict[:600].replace("\n", "\\n"), flush=True)
        print(name, "done", flush=True)
