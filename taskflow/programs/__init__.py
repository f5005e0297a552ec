"""Programs: what drives a machine's devices through a training step, such as Megatron-LM or PyTorch's eager mode.

``program.py`` is the value, ``program_file.py`` its JSON form, and ``presets.py`` those that come along (``*.json``).
"""

from taskflow.programs.on_devices import ProgramEntry, program_entry, program_of
from taskflow.programs.presets import PROBED, load_program, program_names
from taskflow.programs.program import KINDS, ONE_PASS, UNIT_MESSAGES, Passes, TrainingProgram, UnitMessage
from taskflow.programs.program_file import unparse
