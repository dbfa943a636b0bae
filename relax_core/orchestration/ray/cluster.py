"""The Ray cluster of a run: one that is there, or one that starts and ends with it."""

from __future__ import annotations

import os
import socket
from importlib.util import find_spec
from typing import Any

from relax_core.config import TopologySection
from relax_core.errors import LoadError

LOOPBACK = "127.0.0.1"
REACH = 5.0
"""Seconds in which a cluster that is there takes a connection."""
ALWAYS = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""An actor that asks for no GPU is not kept from seeing one, nor told so: a colocated engine is given the actor's."""


def join(topology: TopologySection) -> bool:
    """Connect this process to the run's cluster; True when it is one that `leave` has to end.

    A process that is connected already stays so. Raises LoadError where there is no such cluster.
    """
    import ray

    # What the raylet says of workers that died goes to stdout, and there is no other switch: we say it ourselves.
    ray._private.worker._worker_logs_enabled = False
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if topology.address is None:
        own: dict[str, Any] = {} if topology.host == LOOPBACK else {"_node_ip_address": topology.host}
        ray.init(include_dashboard=topology.dashboard, dashboard_host=topology.host, **own, **quiet)
        return True
    try:
        _reach(topology.address)
        ray.init(address=topology.address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        fix = "start one with `ray start --head`, or leave topology.address out"
        problem = f"no Ray cluster at '{topology.address}': {str(error).splitlines()[0]}"
        raise LoadError(problem, who="topology.address", fix=fix) from None
    return True


def _reach(address: str) -> None:
    """Ray itself would try for minutes. Raises OSError, or ValueError for what is no address."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        raise ValueError("an address is 'auto' or 'host:port'")
    with socket.create_connection((host, int(port)), timeout=REACH):
        pass


def leave() -> None:
    """Disconnect; a cluster that `join` started ends."""
    import ray

    ray.shutdown()


def prepare(topology: TopologySection) -> None:
    """Set what Ray reads when it is first imported: without it, a cluster of one machine is open to its whole network.

    Raises LoadError where Ray is not installed.
    """
    if find_spec("ray") is None:
        raise LoadError(
            "the extra 'ray' is not installed", who="topology.orchestrator", fix="pip install 'relax-rl[ray]'"
        )
    if topology.address is None and topology.host == LOOPBACK:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    for name, value in ALWAYS.items():
        os.environ.setdefault(name, value)
