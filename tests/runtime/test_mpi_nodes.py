"""Ranks on several nodes, which are emulated (`programs.nodes`): where they are, how they fail, and that numbers stay."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from language_model import CONFIG, feeds, model
from mpi_words import spoken
from programs.nodes import CLOCK_SECONDS, Nodes, why_not
from programs.start import HERE, LIMIT_SECONDS, MAKER, Ended
from starting import MPIRUN, ROOT, environment, needs_mpi
from trace_format import verify_events

from taskflow import SGD, Executor, choose, host
from taskflow.machine import load_machine
from taskflow.runtime.profiler.recording import read_trace

WHY_NOT = why_not()
pytestmark = [pytest.mark.mpi, needs_mpi, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.timeout(300)]


def emulated(count: int, folder: Path, **extra: str) -> Nodes:
    here = environment({"TASKFLOW_CACHE": str(folder), "OMP_NUM_THREADS": "1", "TASKFLOW_WATCHDOG_SECONDS": "40", **extra})
    # Open MPI's mpirun counts the slots of the nodes, and then needs no leave for more ranks than cores.
    here = {key: value for key, value in here.items() if not key.startswith("PRTE_MCA_")}
    return Nodes(count, {**here, "PATH": f"{Path(str(MPIRUN)).parent}{os.pathsep}{here['PATH']}"})


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with emulated(2, tmp_path_factory.mktemp("cache")) as nodes:
        yield nodes


def launch(nodes: Nodes, ranks: int, *command: str) -> list[str]:
    """The command line of a job with the same number of ranks on every node."""
    each = ",".join(f"{name}:{-(-ranks // len(nodes.names))}" for name in nodes.names)
    if MAKER == "Open MPI":
        start = ["--host", each, "--prtemca", "plm_ssh_agent", str(nodes.rsh), "--bind-to", "none"]
    else:
        start = ["-hosts", each, "-launcher", "ssh", "-launcher-exec", str(nodes.rsh)]
    return nodes.command("node0", str(MPIRUN), *start, "-n", str(ranks), sys.executable, *command)


def job(nodes: Nodes, ranks: int, *command: str, limit: float = LIMIT_SECONDS) -> Ended:
    began = time.monotonic()
    done = subprocess.run(
        launch(nodes, ranks, *command), cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=limit, check=False
    )
    return Ended(done.returncode, spoken(done.stdout + done.stderr), time.monotonic() - began)


def test_where_ranks_are(two: Nodes) -> None:
    ended = job(two, 4, str(HERE / "where.py"))
    assert ended.code == 0, ended
    told = json.loads(ended.text)
    assert [rank["node"] for rank in told] == ["node0", "node0", "node1", "node1"]
    assert [rank["local_rank"] for rank in told] == [0, 1, 0, 1]
    assert all(rank["watched"] for rank in told)
    for number, rank in enumerate(told):  # only a rank of the same node can be rung
        assert not any(bell for other, bell in enumerate(rank["bells"]) if other // 2 != number // 2)


WATCHDOG = "60"  # seconds, after which a job that nobody has ended would end by itself
FAILURES = [
    ("exception", "rank 3 of 4: ValueError: boom"),
    ("kill", "rank 3 of 4: killed by signal 9 (SIGKILL) (pid"),
    ("gone in C", "rank 3 of 4: ended by _exit(0) in C, without leaving the program (pid"),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in [
        ("crash", "rank 3 of 4: killed by signal 11 (SIGSEGV) (pid"),
        ("exit", "waits in conv1 forward 2 to receive 32 bytes from rank 3 (tag 5), but rank 3 has left the program"),
        ("gone", "rank 3 of 4: ended by os._exit(0)"),
        ("broadcast", "but rank 3 has left the program"),
    ]),
]


@pytest.mark.parametrize("case,message", FAILURES)
def test_a_rank_of_another_node_fails(two: Nodes, case: str, message: str) -> None:
    ended = job(two, 4, str(HERE / "failing.py"), case, WATCHDOG, "0")
    assert ended.code != 0 and ended.seconds < float(WATCHDOG), ended
    assert ended.text.count("taskflow: rank") == 1, ended.text
    # Open MPI itself ends a rank whose peer is gone, with code 14, and on a busy machine that may be heard of first.
    if MAKER != "Open MPI" or "ended by _exit(14) in C" not in ended.text:
        assert message in ended.text
        assert "(pid" not in message or "on node1)" in ended.text


@pytest.mark.slow
def test_the_only_rank_of_a_node_is_killed(two: Nodes) -> None:
    ended = job(two, 2, str(HERE / "failing.py"), "gone in C", WATCHDOG, "0")
    assert ended.code != 0 and ended.seconds < float(WATCHDOG), ended
    assert ended.text.count("taskflow: rank 1 of 2: ended by _exit(0) in C") == 1, ended.text


def test_a_rank_of_another_node_hangs(two: Nodes) -> None:
    ended = job(two, 4, str(HERE / "failing.py"), "hang", "3")
    assert ended.code != 0 and ended.seconds < float(WATCHDOG), ended
    said = r"watchdog: has waited [3-7]\.\d s in conv1 forward 2 to receive 32 bytes from rank 3 \(tag 5\)"
    assert re.search(said, ended.text), ended.text


@pytest.mark.slow
@pytest.mark.skipif(MAKER == "Open MPI", reason="Open MPI's mpirun waits for a node that is lost, and passes nothing on meanwhile")
def test_a_network_cable_is_pulled(tmp_path: Path) -> None:
    with emulated(2, tmp_path, TASKFLOW_NODE_SECONDS="6") as nodes:
        running = subprocess.Popen(
            launch(nodes, 4, str(HERE / "failing.py"), "hang", "300"), cwd=ROOT, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        assert running.stdout is not None
        while "ready" not in running.stdout.readline():
            assert running.poll() is None
        time.sleep(0.5)
        nodes.cut("node1")
        text = running.communicate(timeout=LIMIT_SECONDS)[0]
    assert running.returncode != 0
    assert text.count("taskflow: node node1 (ranks 2, 3) does not answer any more") == 1, text


def test_training_and_its_trace(two: Nodes, tmp_path: Path) -> None:
    """The losses of one process, and one time line, although the nodes' clocks are far apart."""
    path = tmp_path / "run.json"
    ended = job(two, 4, str(HERE / "trace_everywhere.py"), str(path), "0", "0", "expert")
    assert ended.code == 0, ended
    content = read_trace(path)
    verify_events(content)
    clocks = content["otherData"]["clocks"]
    for clock in clocks:
        wanted = CLOCK_SECONDS * (clock["rank"] // 2)
        assert clock["ahead_seconds"] == pytest.approx(wanted, abs=clock["error_seconds"] + 1e-6), clocks
    sent = {event["id"]: event["ts"] for event in content["traceEvents"] if event["ph"] == "s"}
    arrived = {event["id"]: event["ts"] for event in content["traceEvents"] if event["ph"] == "f"}
    assert sent and sent.keys() == arrived.keys()
    error = 2e6 * max(clock["error_seconds"] for clock in clocks)
    assert all(arrived[message] >= sent[message] - error for message in sent)


@pytest.mark.slow
@pytest.mark.parametrize("nodes_count,ranks", [(2, 4), (4, 4), (4, 16)])
def test_losses_do_not_depend_on_the_nodes(tmp_path: Path, nodes_count: int, ranks: int) -> None:
    program = tmp_path / "losses.py"
    program.write_text(LOSSES)
    with emulated(nodes_count, tmp_path, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests")])) as nodes:
        ended = job(nodes, ranks, str(program))
    assert ended.code == 0, ended
    machine, graph = host(ranks), model("float64", CONFIG)
    strategy, mapper = choose("expert", graph, machine)
    run = Executor(graph, strategy, SGD(0.1), machine=machine, mapper=mapper)
    np.testing.assert_array_equal(json.loads(ended.text), [run.train(feeds(step, CONFIG)) for step in range(4)])


LOSSES = """
import json, taskflow
from language_model import CONFIG, feeds, model
transport = taskflow.connect()
graph, machine = model("float64", CONFIG), taskflow.host(transport.size)
strategy, mapper = taskflow.choose("expert", graph, machine)
run = taskflow.Executor(graph, strategy, taskflow.SGD(0.1), transport=transport, machine=machine, mapper=mapper)
losses = [run.train(feeds(step, CONFIG)) for step in range(4)]
if transport.rank == 0:
    print(json.dumps(losses))
run.close()
transport.close()
"""


@pytest.mark.slow
def test_measure_tells_nodes_apart_and_search_plans_for_them(two: Nodes, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    ended = job(two, 4, str(HERE / "measuring.py"), str(path))
    assert ended.code == 0 and "here: 4 x cpu on 2 nodes" in ended.text, ended
    machine = load_machine(path)
    (within,) = machine.route(0, 1)
    between = machine.route(0, 2)
    assert len(between) == 4 and within.occupies_endpoints
    text = path.read_text()
    assert '"measured: messages between ranks 0, 1 and ranks 2, 3"' in text
    assert '"measured: messages between ranks 0, 2; half of the latency"' in text
    command = [sys.executable, "-m", "taskflow", "search", "mlp", "--machine", str(path), "--budget", "50p", "--out"]
    done = subprocess.run(
        [*command, str(tmp_path / "plan.json")], env=environment(), capture_output=True, text=True, check=False,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0 and (tmp_path / "plan.json").is_file(), done.stderr
