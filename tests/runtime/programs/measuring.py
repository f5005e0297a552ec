"""Measure this job's machine; every rank must get the same. Rank 0 saves it at the path that it is given."""

import sys
from pathlib import Path

from taskflow.machine import load_machine, save
from taskflow.runtime.calibrate import machine as module
from taskflow.runtime.connecting import connect

module.SECONDS = 0.02
transport = connect()
machine = module.measure(transport, "here")
machines = transport.gather(machine.kinds + machine.nodes)
if transport.rank == 0:
    assert all(each == machines[0] for each in machines)
    save(machine, Path(sys.argv[1]))
    assert load_machine(sys.argv[1]) == machine
    print(machine)
transport.close()
