"""A running swarm of four continues while twenty silent DHT nodes surround the key of its leases.

Node ids are free: the nearest twenty to the key belong to the attacker. They take every lease and
return none, so a reader of the DHT sees at most its own.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from dht_stock import end_all
from swarm_of_four import RUN, TIMEOUT_S, assert_it_continues, assert_one_chain, four
from swarm_of_processes import Swarm

from atom.swarm.addresses import parse_join_address
from atom.swarm.records.manifest import lease_key

__all__ = ["four"]

NODES = 20
ECLIPSED_S = float(os.environ.get("ATOM_ECLIPSED_S", "45"))


@contextmanager
def silent_nodes(address: str, key: str) -> Iterator[None]:
    """Surround a key with silent nodes while the context is open."""
    program = [sys.executable, str(Path(__file__).parent / "silent_nodes.py")]
    with subprocess.Popen(
        [*program, key, str(NODES), address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "surrounded\n"
            yield
        finally:
            family = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            end_all([member.pid for member in family])


@pytest.mark.timeout(ECLIPSED_S + TIMEOUT_S)
def test_a_swarm_of_four_continues_while_its_leases_are_eclipsed(four: Swarm) -> None:
    join = parse_join_address(four.address)
    with silent_nodes(join.bootstrap[0], lease_key(RUN, join.owner)):
        assert_it_continues(four, ECLIPSED_S)
    assert_one_chain(four)
