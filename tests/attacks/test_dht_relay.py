"""Abuse: p2pd as a relay, dialler and port opener for strangers, outside the volunteer's caps."""

import asyncio
from pathlib import Path

import pytest

from atom.swarm.addresses import parse_listen
from atom.swarm.dht import p2pd
from atom.swarm.dht.p2pd import NodeSettings
from tests.attacks.dht_attacker import attacker_of, victim_in

pytestmark = pytest.mark.timeout(120)
RELAY = "/libp2p/circuit/relay/0.2.0/hop"
DIAL_BACK = "/libp2p/autonat/1.0.0"
IDENTIFY = "/ipfs/id/1.0.0"
SERVICES_OFF = ["-autonat=0", "-natPortMap=0", "-relay=0"]


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:0", "192.0.2.1:31337"])
def test_no_command_line_of_p2pd_offers_a_service(listen: str) -> None:
    settings = NodeSettings(listen=listen)
    flags = p2pd._arguments(settings, parse_listen(listen), Path("p2pd.sock"))
    assert [flag for flag in SERVICES_OFF if flag not in flags] == []
    assert not [flag for flag in flags if flag.startswith("-relay") and flag != "-relay=0"]


@pytest.mark.parametrize("overruled", [(), ("-relay=1", "-autonat=1")])
def test_a_public_node_accepts_no_stream_of_a_service(
    overruled: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libp2p serves once it holds itself for public. The second case shows that the probe works."""
    public = ("-forceReachabilityPublic=1", *overruled)
    monkeypatch.setattr("atom.swarm.dht.client.PROGRAM", ("-c", WITH_FLAGS.format(public)))

    async def check() -> None:
        async with victim_in(tmp_path) as victim, attacker_of(victim.address) as attacker:
            assert await attacker.protocols_include(IDENTIFY)
            offered = [
                each for each in (RELAY, DIAL_BACK) if await attacker.protocols_include(each)
            ]
            assert offered == ([RELAY, DIAL_BACK] if overruled else [])
            assert all(flag in victim.p2pd.cmdline() for flag in SERVICES_OFF)

    asyncio.run(check())


WITH_FLAGS = """
import sys
from atom.swarm.dht import p2pd, process
usual = p2pd._arguments
p2pd._arguments = lambda *given: [*usual(*given), *{}]
process.main(sys.argv[1:])
"""
