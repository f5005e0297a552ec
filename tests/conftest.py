import gc
import os
import random
import signal
import sys
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
# A shell that starts the tests in the background has them ignore Ctrl-C, and all that they start: some test what it does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Open MPI's mpirun wants to be told that it may start as root (as in a container) and more ranks than cores; others read neither.
for variable in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
# Piped tables have as many columns as this says, which a terminal, a CI system or pytest's own workers may set for all they start.
os.environ.pop("COLUMNS", None)
# Threads of oneDNN and PyTorch (OpenMP) that spin while they wait for each other take the processor from those they wait for: with
# eight more programs on two cores a training that takes 5 s alone was not over after 100 s, and is after 33 if they sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Hypothesis gives an example 0.2 s by the clock on the wall, which says how busy the machine is; what must be quick, a test of its
# own measures, in processor time.
with suppress(ImportError):  # benchmarks/gpu.py runs tests/gpu where there is none
    from hypothesis import settings

    settings.register_profile("any machine", deadline=None)
    settings.load_profile("any machine")


# The search for unreachable cycles goes through what is alive, which is least between tests: it comes there, and within a test only
# where very many objects stay. With Python's own numbers it takes a quarter to a third of the processor time of tests that lower
# steps. Programs that tests start have those.
gc.set_threshold(2_000_000, 10, 10)
MANY_OBJECTS = 100_000  # that have stayed since the last search


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The generators that all tests share begin every test alike: what fails among others fails alone."""
    random.seed(0)
    for name, seed in (("numpy", "random.seed"), ("torch", "manual_seed")):
        if (module := sys.modules.get(name)) is not None:
            attrgetter(seed)(module)(0)


# What takes longest comes first, so that no worker has it alone at the end.
LONGEST = ("test_commands_run", "test_without_a_compiler", "test_python_blocks_print", "test_a_plan_found_for_a_llama_trains")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.name.startswith(LONGEST))


def pytest_collection_finish() -> None:
    """Let that search pass over what stays, which are all tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    if gc.get_count()[0] > MANY_OBJECTS:
        gc.collect()
