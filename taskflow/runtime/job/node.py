"""Identity of the node that this process is on. Processes of one node share memory, PIDs and sockets."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path


def node_key() -> str:
    """Return a key that is the same for processes of one node and differs between nodes; at most 63 characters. It is not the
    host's name, which several machines of a cluster may share, but the kernel's boot ID and the namespaces of PIDs and
    networks. So two containers are two nodes. On systems other than Linux it is the host's name."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
            spaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("pid", "net")]
            return "{}.{:x}.{:x}".format(boot[:24], *spaces)
    return platform.node()[-63:]
