"""Swarms of real daemons for benchmarks; `SLOW_PEER` is the daemon with passes that sleep.

The swarm itself (start, kill, freeze, watch) is `tests/swarm_of_processes.py`.
"""

import os
import sys
from pathlib import Path

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # else it kills some forked children (grpc/grpc#43055)
sys.path.append(str(Path(__file__).parents[2] / "tests"))
from swarm_of_processes import Peer, Swarm, endless, gather, swarm_in

SLOW_PEER = ("-m", "benchmarks.shared.slow_peer")

__all__ = ["SLOW_PEER", "Peer", "Swarm", "endless", "gather", "swarm_in"]
