"""Connects for as many processors as the first argument says."""

import sys

from taskflow.runtime.launch import connect

connect(processors=int(sys.argv[1])).close()
