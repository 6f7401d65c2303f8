"""Attack: one host sends requests to a DHT node under many libp2p ids, which cost nothing."""

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from atom.swarm.identity import Identity
from atom.swarm.records.manifest import encode_lease, lease_key
from tests.attacks.dht_attacker import REFUSED, Attacker, Victim, attacker_of, dht_pb2, victim_in
from tests.swarm.swarm_samples import a_lease

pytestmark = pytest.mark.timeout(180)
IDS = 6
REQUESTS = 100
"""Requests under each id at a time."""
PING = bytes(dht_pb2.PingRequest().SerializeToString())


async def answered(attackers: list[Attacker]) -> int:
    """Return the number of requests that are answered; all others are refused as too many."""
    requests = [each.send("rpc_ping", PING) for each in attackers for _ in range(REQUESTS)]
    answers = await asyncio.gather(*requests, return_exceptions=True)
    refused = [each for each in answers if isinstance(each, REFUSED)]
    assert all("busy" in str(each) for each in refused)
    return len(answers) - len(refused)


async def make_known(victim: Victim, *peer_ids: str) -> None:
    """Let the victim publish a lease in a run that knows these peers."""
    owner, expires_at = Identity.create(), time.time() + 8.0
    record = encode_lease(a_lease(owner.peer_id), "run", owner.peer_id, owner, expires_at)
    place = {"key": lease_key("run", owner.peer_id), "subkey": owner.peer_id}
    await victim.client.call(
        "store", 10.0, record=record, expires_at=expires_at, known=[*peer_ids], **place
    )


def test_many_ids_of_one_host_get_no_more_than_one_and_delay_no_other(tmp_path: Path) -> None:
    async def check() -> None:
        from atom.swarm.dht import guard  # imports hivemind, which the attacker has done quietly

        async with contextlib.AsyncExitStack() as stack:
            victim = await stack.enter_async_context(victim_in(tmp_path))
            attackers = [
                await stack.enter_async_context(attacker_of(victim.address)) for _ in range(IDS)
            ]
            known = await stack.enter_async_context(attacker_of(victim.address))
            newcomer = await stack.enter_async_context(attacker_of(victim.address, "127.0.0.2"))
            await make_known(victim, known.peer_id)
            began = time.monotonic()
            count = await answered(attackers)
            took_s = time.monotonic() - began
            assert count < IDS * REQUESTS
            assert count <= guard.UNITS_AT_ONCE + 1 + guard.UNITS_PER_SECOND * took_s
            flood = asyncio.create_task(answered(attackers))
            for other in (known, newcomer):
                for _ in range(20):
                    assert await other.send("rpc_ping", PING)
            await flood
            await victim.assert_unharmed()

    asyncio.run(check())


def test_a_newcomer_at_the_host_of_a_flood_is_answered_after_a_while(tmp_path: Path) -> None:
    """The allowance of that host, which both share, grows again when the flood ends."""

    async def check() -> None:
        async with (
            victim_in(tmp_path) as victim,
            attacker_of(victim.address) as attacker,
            attacker_of(victim.address) as newcomer,
        ):
            while await answered([attacker]) == REQUESTS:
                pass
            async with asyncio.timeout(30.0):
                while True:
                    with contextlib.suppress(*REFUSED):
                        assert await newcomer.send("rpc_ping", PING)
                        return

    asyncio.run(check())
