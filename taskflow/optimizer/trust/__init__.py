"""Trust: how far a prediction can be trusted, judged by similar measured steps and how far their predictions were off.

``measured.py`` has published figures and how often plans came in the order that was predicted, ``groups.py`` the errors of many
more steps, and ``run_file.py`` a user's own runs.
"""

from taskflow.optimizer.trust.expected_error import trust
from taskflow.optimizer.trust.features import Features, features
from taskflow.optimizer.trust.measured import MEASURED, PlanOrder, order_of
from taskflow.optimizer.trust.run_file import (
    MeasuredRun,
    RunFile,
    free_name,
    read_run,
    read_runs,
    run_file,
    state_of,
    write_run,
)
