"""Connects for as many processors as the first argument says. Rank 0 says "starts" first."""

import os
import sys

from taskflow.runtime.connecting import connect
from taskflow.runtime.job.launch import launcher

if launcher().rank == 0:
    os.write(1, b"starts\n")  # at once, so that no other rank's words come between it and its end of line
connect(processors=int(sys.argv[1])).close()
