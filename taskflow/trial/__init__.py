"""Plans tried where they will train: exported to PyTorch, with a program that runs each for some steps and needs PyTorch alone.

``script/`` is the program's code, which ``writing.py`` joins into one file; ``network.py`` says which module, inputs, targets and
loss a step has. ``looking.py`` looks at an exported module before it is written; ``with_numbers.py`` runs it for that.
"""

from taskflow.trial.beside import Beside
from taskflow.trial.looking import looked_at
from taskflow.trial.network import TriedNetwork, module_spec, tried_network
from taskflow.trial.tried_file import TriedFile, TriedPlan, read_tried
from taskflow.trial.writing import PLANS, SCRIPT_NAME, script_text

__all__ = [
    "PLANS", "SCRIPT_NAME", "Beside", "TriedFile", "TriedNetwork", "TriedPlan", "looked_at", "module_spec", "read_tried",
    "script_text", "tried_network",
]  # fmt: skip
