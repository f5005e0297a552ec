"""Connects for as many processors as the first argument says. Rank 0 says "starts" first."""

import sys

from taskflow.runtime.connect import connect
from taskflow.runtime.job.launch import launcher

if launcher().rank == 0:
    print("starts", flush=True)
connect(processors=int(sys.argv[1])).close()
