"""Machine: the processors that run tasks, and the links that carry copies between them.

``parts.py`` defines both, and ``topology.py`` the routes. ``cluster.py`` is a machine of nodes, ``machine_file.py`` its file and
``presets.py`` those that come along. ``collectives.py`` prices collectives: those of a library that uses all links, or else
those of ``ring.py``, which go around one ring, with the bytes that each member of a ring sends.
"""

from taskflow.machine.cluster import Cluster
from taskflow.machine.collectives import Around, Channels, between_nodes, collective, collective_links, exchange
from taskflow.machine.host import TYPICAL, host
from taskflow.machine.library import Collectives, Curve, SwitchSums
from taskflow.machine.machine_file import unparse
from taskflow.machine.network import Level, Network
from taskflow.machine.part_of import PartOfMachine
from taskflow.machine.parts import Device, Ends, Link, Machine, Processor, ProductRates, transfer_seconds
from taskflow.machine.presets import cores, load_machine, preset_names, save
from taskflow.machine.ring import Ring, all_pairs, ring, ring_bytes, ring_share
from taskflow.machine.template import NETWORK, Group, NodeTemplate, Wire
from taskflow.machine.timed import Timed, TimedPoint, fitted, left_out_errors
from taskflow.machine.torus import Slice, Torus

# What documents name; the rest is for other packages of taskflow.
__all__ = [
    "Cluster",
    "Collectives",
    "Curve",
    "Device",
    "Group",
    "Level",
    "Link",
    "Machine",
    "Network",
    "NodeTemplate",
    "Processor",
    "SwitchSums",
    "Wire",
    "host",
    "load_machine",
    "preset_names",
    "save",
]
