"""Which node this process is on: what must be the same for processes that share memory, PIDs and sockets."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path


def node_key() -> str:
    """The same for processes of one node, and for those alone; at most 63 characters. Not the host's name, which machines of a
    cluster may share: the boot that the kernel is in, and the namespaces of PIDs and networks, so that two containers are two
    nodes. The host's name where the system is not Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
            spaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("pid", "net")]
            return "{}.{:x}.{:x}".format(boot[:24], *spaces)
    return platform.node()[-63:]
