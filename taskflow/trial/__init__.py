"""Plans tried where they will train: exported to PyTorch, with a program that runs each for some steps and needs PyTorch alone.

``script/`` is the program's code, which ``writing.py`` joins into one file; ``network.py`` says which module, inputs, targets and
loss a step has.
"""

from taskflow.trial.network import TriedNetwork, tried_network
from taskflow.trial.tried_file import TriedFile, read_tried
from taskflow.trial.writing import PLANS, SCRIPT_NAME, script_text
