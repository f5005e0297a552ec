"""User tasks over regions: their declaration, their launches, and lowering these to a TaskGraph."""

from taskflow.tasks.launch.function import TaskFunction
from taskflow.tasks.launch.future import Future
from taskflow.tasks.launch.launch import Launch, Over, Place, make_launch
from taskflow.tasks.launch.lower import LaunchLowering, initial_name, movements_first
from taskflow.tasks.launch.repeat import pass_values, repeats
