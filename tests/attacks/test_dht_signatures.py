"""Attack: requests to store whole dictionaries of records, each with a signature to be checked.

A check takes 0.3 ms of the only thread that answers. A record takes 400 bytes, and no key is used.
"""

import asyncio
import secrets
import time
from pathlib import Path

import pytest

from atom.swarm import schema
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import LEASE_DOMAIN, LeaseBody, SignedRecord, lease_key
from tests.attacks.dht_attacker import DHTID, REFUSED, attacker_of, dht_pb2, msgpack, victim_in
from tests.swarm.swarm_samples import a_lease

pytestmark = pytest.mark.timeout(180)
RECORDS = 500
REQUESTS = 12
CHECKS_AT_ONCE, CHECKS_PER_S = 2_500, 500
"""Bound on signatures that strangers at one host have checked."""


def crowded_request() -> bytes:
    """Return a request to store unsigned records under their right key."""
    owner, ends = Identity.create().peer_id, time.time() + 19.0
    items = []
    for _ in range(RECORDS):
        author = Identity.create().peer_id
        body = schema.encode(LeaseBody("run", owner, ends, a_lease(author)))
        record = schema.encode(SignedRecord(LEASE_DOMAIN, body, secrets.token_bytes(64)))
        items.append([author, msgpack.packb(record), ends])
    dictionary = msgpack.packb([float(RECORDS), ends, items])
    request = dht_pb2.StoreRequest(
        keys=[DHTID.generate(lease_key("run", owner)).to_bytes()],
        subkeys=[b""],
        values=[msgpack.packb(msgpack.ExtType(0x50, dictionary))],
        expiration_time=[ends],
        in_cache=[False],
    )
    return bytes(request.SerializeToString())


def test_a_host_has_few_signatures_checked(tmp_path: Path) -> None:
    requests = [crowded_request() for _ in range(REQUESTS)]

    async def check() -> None:
        async with victim_in(tmp_path) as victim, attacker_of(victim.address) as attacker:
            began = time.monotonic()
            answers = await asyncio.gather(
                *(attacker.send("rpc_store", each) for each in requests), return_exceptions=True
            )
            took_s = time.monotonic() - began
            refused = [each for each in answers if isinstance(each, REFUSED)]
            assert all("busy" in str(each) for each in refused)
            checked = RECORDS * (len(answers) - len(refused))
            assert 0 < checked <= CHECKS_AT_ONCE + CHECKS_PER_S * took_s
            await victim.assert_unharmed()

    asyncio.run(check())
