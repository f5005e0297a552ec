"""`taskflow programs`, and --program on the commands that predict a step."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskflow.cli.main import main
from taskflow.machine import load_machine, save
from taskflow.programs import PROBED, TrainingProgram, load_program, program_names, unparse

ASKED = [
    "simulate", "GPT-2", "--size", "small", "-m", "h100", "-n", "8", "--batch", "16", "--rule", "adam", "--strategy", "d4 t2 mb2",
]


def run(*arguments: str) -> str:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def test_programs_lists_them_with_what_they_say() -> None:
    text, rows = run("programs"), json.loads(run("programs", "--json"))["programs"]
    assert [row["name"] for row in rows] == list(program_names())
    assert all(name in text for name in program_names())


def test_the_answer_names_the_program_and_depends_on_it() -> None:
    by_default = json.loads(run(*ASKED, "--json"))
    assert by_default["costs"] == "analytic h100 (megatron)"
    slower = json.loads(run(*ASKED, "--program", "nanotron", "--json"))
    assert slower["costs"] == "analytic h100 (nanotron)"
    assert slower["iteration_seconds"] > 1.5 * by_default["iteration_seconds"]  # the host needs longer for each kernel
    assert "(nanotron)" in run(*ASKED, "--program", "nanotron")


@pytest.mark.parametrize(("words", "program", "said"), [
    ("d8 mb2 zero3", (), "megatron itself cannot run t1 p1 d8 mb2 zero3 (Megatron-LM's distributed optimizer is ZeRO's"),
    ("d8 mb2 zero3", ("--program", "fsdp"), ""), ("d8 mb2 zero1", (), ""),
    ("t2 d4 mb2", ("--program", "torchtitan"), "torchtitan itself cannot run t2 p1 d4 mb2 ("),
])  # fmt: skip
def test_the_answer_says_if_its_program_has_no_such_plan(words: str, program: tuple[str, ...], said: str) -> None:
    asked = [*ASKED[:-1], words, "--dtype", "bf16", *program]
    text, row = run(*asked), json.loads(run(*asked, "--json"))
    assert (said in text and "itself cannot run" in text) if said else "itself cannot run" not in text
    assert ("program_lacks" in row) is bool(said)


def test_deepspeed_around_a_module_of_ones_own_has_the_kernels_of_eager_pytorch(tmp_path: Path) -> None:
    """Its JSON is for a module as it is, not for Megatron-DeepSpeed with its fused kernels."""
    seconds = []
    for target in ("deepspeed", "accelerate"):
        text = run("export", "d8 mb2 zero3", "--model", *ASKED[1:-2], "--to", target, "--out", str(tmp_path / target))
        seconds.append(float(re.search(r"([0-9.]+) (?:m)?s a step predicted", text)[1]))  # type: ignore[index]
    assert seconds[0] == seconds[1]


def test_a_program_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    content = {**unparse(load_program("nanotron")), "name": "mine", "host_seconds": 0.0}
    file.write_text(json.dumps(content))
    row = json.loads(run(*ASKED, "--program", str(file), "--json"))
    assert row["costs"] == "analytic h100 (mine)"
    assert row["iteration_seconds"] < json.loads(run(*ASKED, "--program", "nanotron", "--json"))["iteration_seconds"]


def test_a_program_begins_as_another_and_says_what_differs(tmp_path: Path) -> None:
    def load(name: str, **keys: object) -> TrainingProgram:
        content = {"format": "taskflow-program", "version": 1, "name": name, **keys}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return load_program(tmp_path / f"{name}.json")

    there, a100 = load_program("fsdp"), {"a100": {"exposed": 0.1}, "h200": {"memory": 0.5}}
    mine = load("mine", like="fsdp", memory=0.45, gpus=a100)
    assert (mine.name, mine.about, mine.on("h100").exposed, mine.on("h200").memory) == ("mine", there.about, there.exposed, 0.5)
    assert mine.on("a100") == replace(there.on("a100"), name="mine", exposed=0.1)
    assert mine.on("v100") == replace(there.on("v100"), name="mine", memory=0.45)
    assert load("again", like="mine.json").on("a100") == replace(mine.on("a100"), name="again")
    for keys, said in (
        ({"like": "nothing"}, "like: must be a preset with figures of its own or a program file, got 'nothing'"),
        ({"like": "none.json"}, "got 'none.json'"), ({"like": "circle.json"}, "like: 'circle.json' begins as this program"),
        ({"like": "fsdp", "memry": 1}, "unknown key 'memry'"), ({"like": ""}, "like: must be a text that is not empty"),
        ({}, "'host_seconds' is missing"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)) as caught:
            load("circle", **keys)
        assert str(tmp_path / "circle.json") in str(caught.value)
    load("whole", like="fsdp")
    load("one", like="whole.json")
    with pytest.raises(ValueError, match=re.escape("'whole.json' begins as this program")):
        load("whole", like="one.json")


def test_a_plan_remembers_its_program(tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    run("search", "MLP", "--size", "small", "-m", "h100", "-n", "2", "--budget", "20p", "--program", "fsdp", "--out", plan)
    assert json.loads(Path(plan).read_text())["made_from"]["program"] == "fsdp"
    assert "(fsdp)" in run("strategy", "show", plan)
    assert "(torchtitan)" in run("strategy", "show", plan, "--program", "torchtitan")


@pytest.mark.parametrize("extra,said", [
    (["--program", "nothing"], "no program 'nothing'"), (["--program", "none.json"], "program file none.json does not exist"),
    (["--program", "fsdp", "-m", "this", "-n", "2"], "programs drive GPUs, machine host-2 has none"),
])
def test_what_is_no_program_is_refused(extra: list[str], said: str) -> None:
    done = CliRunner().invoke(main, [*ASKED, *extra])
    assert done.exit_code == 2 and said in done.output


def test_a_measured_program_is_kept_and_cores_have_none_whatever_framework_a_plan_is_for(tmp_path: Path) -> None:
    out = str(tmp_path / "plan.args")
    words = ["export", "t2", "--model", "gpt-2", "--size", "small", "--set", "steps=8", "-n", "2"]
    words += ["--to", "megatron", "--out", out, "--json", "-m"]
    assert json.loads(run(*words, "h100"))["costs"] == "analytic h100 (megatron)"
    assert json.loads(run(*words, "h100", "--program", "fsdp"))["costs"] == "analytic h100 (fsdp)"
    assert json.loads(run(*words, "this"))["costs"] == "analytic host-2"
    probed = load_machine("h100", 2).driven_by(replace(load_program("fsdp"), name=PROBED))
    save(replace(probed, name="mine"), tmp_path / "mine.json")
    assert json.loads(run(*words, str(tmp_path / "mine.json")))["costs"] == "analytic mine (probed)"


@pytest.mark.parametrize(("model", "rule"), [("llama", "adam"), ("transformer", "adam"), ("MLP", "momentum"), ("nmt", "momentum")])
def test_networks_with_attention_are_trained_with_adam_unless_a_rule_is_given(model: str, rule: str) -> None:
    asked = ["simulate", model, "--size", "small", "-m", "h100", "-n", "2", "--strategy", "data", "--json"]
    assert json.loads(run(*asked))["rule"] == rule and json.loads(run(*asked, "--rule", "sgd"))["rule"] == "sgd"


@pytest.mark.parametrize(("words", "said"), [
    (("gpt-2", "-m", "h100"), "attention is not one kernel (--set fused=True)"),
    (("gpt-2", "-m", "h100", "--set", "fused=True"), ""),
    (("transformer", "-m", "h100"), "attention is not one kernel"), (("llama", "-m", "h100"), ""), (("gpt-2", "-m", "this"), ""),
])  # fmt: skip
def test_attention_that_is_not_fused_is_named(words: tuple[str, ...], said: str) -> None:
    """A program's kernel of attention is not in a network that writes the scores of all pairs of words."""
    text = run("simulate", *words, "-n", "1", "--size", "small", "--strategy", "data")
    assert said in text if said else "one kernel" not in text


@pytest.mark.parametrize(("machine", "guessed"), [("this", True), ("this-gpu", True), ("h100", False), ("k80", False)])
def test_rates_that_nobody_measured_are_called_typical(machine: str, guessed: bool, tmp_path: Path) -> None:
    words = ("simulate", "MLP", "--size", "small", "-n", "1", "--strategy", "data", "-m")
    assert ("rates and memory are typical, not this machine's" in run(*words, machine)) is guessed
    save(load_machine(machine, 1), tmp_path / "mine.json")  # nor does a file make them measured ones
    assert ("are typical" in run(*words, str(tmp_path / "mine.json"))) is guessed


@pytest.mark.parametrize("machine,dtype,said", [
    ("v100", "bf16", "v100 has no units for bfloat16, --dtype fp16 multiplies 8x as fast"), ("v100", "fp16", ""),
    ("h100", "fp32", "rule: momentum; --dtype bf16 multiplies 15x as fast"), ("h100:bf16", "fp32", ""), ("p100", "fp32", ""),
    ("v100", "fp32", "; --dtype fp16 multiplies 8x as fast"), ("h100", "bf16", ""), ("k80", "bf16", ""),
    ("tpu-v5e", "fp16", "tpu-v5e has no units for float16, --dtype bf16 multiplies 6x"),
])  # fmt: skip
def test_a_type_that_devices_are_slow_in_is_named(machine: str, dtype: str, said: str) -> None:
    text = run("simulate", "MLP", "--size", "small", "-m", machine, "-n", "2", "--dtype", dtype, "--strategy", "data")
    assert said in text if said else "has no units" not in text and "as fast" not in text


def test_a_type_is_named_without_an_option_that_a_function_may_not_take(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("from taskflow.models import build\n\n\ndef graph():\n    return build('MLP', batch=8)\n")
    text = run("simulate", f"{tmp_path / 'own.py'}:graph", "-m", "h100", "-n", "2", "--strategy", "data")
    assert "; bf16 multiplies 15x as fast" in text and "--dtype" not in text
