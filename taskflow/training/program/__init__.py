"""Training program: what ``taskflow train NAME`` and the programs in ``examples/`` have in common.

``example.py`` makes a command of a function. ``options.py`` has the command-line options of all programs (``--mapper``,
``--watchdog``, ``--trace``, ...), ``plan.py`` the plan that ``--mapper`` names, ``loop.py`` the steps, ``progress.py`` the output,
and ``resume.py`` checkpoints.
"""

from taskflow.training.program.example import Preset, RunConfig, Training, example
from taskflow.training.program.images import DATA, load_images, normalised_above_zero, workers_option
from taskflow.training.program.language_model import DATA_HELP, language_model, text_options
from taskflow.training.program.plan import PATIENCE_SECONDS, SEARCH_BUDGET, plan
from taskflow.training.program.progress import TrainingProgress
from taskflow.training.program.rank_agreement import on_all_ranks
