"""Machines as PyTorch or JAX sees them: a probe that needs one of them alone, and what is made of its measurements.

``script/`` and ``script_jax/`` are the probe's code, ``writing.py`` joins it into one file, ``measurements.py`` and
``nccl_tests.py`` read what was found, and ``building.py`` makes a machine of it. ``kineto.py`` reads traces of runs,
``joined.py`` lays them beside a prediction, ``calibrating.py`` takes them into a machine.
"""

from taskflow.probe.building import Built, built
from taskflow.probe.calibrating import calibrated
from taskflow.probe.joined import Joined, joined
from taskflow.probe.kineto import read_kineto
from taskflow.probe.measurements import Measurements, read_probes
from taskflow.probe.nccl_tests import is_nccl_tests, measurements_of
from taskflow.probe.of_plan import message_sizes, operators_of
from taskflow.probe.writing import FRAMEWORKS, probe_text
