"""Abuse: p2pd as a relay, dialler and port opener for strangers, outside the volunteer's caps."""

from pathlib import Path

import pytest

from tests.attacks.dht_attacker import attacker_of, victim_in

pytestmark = pytest.mark.timeout(120)
RELAY = "/libp2p/circuit/relay/0.2.0/hop"
DIAL_BACK = "/libp2p/autonat/1.0.0"
IDENTIFY = "/ipfs/id/1.0.0"
SERVICES_OFF = ["-autonat=0", "-natPortMap=0", "-relay=0"]


@pytest.mark.parametrize("overruled", [(), ("-relay=1", "-autonat=1")])
async def test_a_public_node_accepts_no_stream_of_a_service(
    overruled: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libp2p serves once it holds itself for public. The second case shows that the probe works."""
    public = ("-forceReachabilityPublic=1", *overruled)
    monkeypatch.setattr("atom.swarm.dht.client.PROGRAM", ("-c", WITH_FLAGS.format(public)))
    async with victim_in(tmp_path) as victim, attacker_of(victim.address) as attacker:
        assert await attacker.protocols_include(IDENTIFY)
        offered = [each for each in (RELAY, DIAL_BACK) if await attacker.protocols_include(each)]
        assert offered == ([RELAY, DIAL_BACK] if overruled else [])
        assert all(flag in victim.p2pd.cmdline() for flag in SERVICES_OFF)


WITH_FLAGS = """
import sys
from atom.swarm.dht import p2pd, process
usual = p2pd._arguments
p2pd._arguments = lambda *given: [*usual(*given), *{}]
process.main(sys.argv[1:])
"""
