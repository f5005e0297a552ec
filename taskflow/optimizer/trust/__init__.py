"""Trust: how far a prediction can be trusted, judged by similar measured steps and how far their predictions were off.

``measured.py`` has published figures, ``groups.py`` the errors of many more steps, ``run_file.py`` a user's own runs, and
``order.py`` says how often plans came in the order that was predicted.
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
