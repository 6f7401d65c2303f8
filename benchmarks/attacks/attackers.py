"""Attacks of one stranger on a running swarm; each works until it is killed.

    python -m benchmarks.attacks.attackers NAME TARGET

`run.py` starts them with half a core each. TARGET is the JSON of `Target`, on loopback.
"""

import asyncio
import contextlib
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable

from atom.swarm.records.lease import RENEW_SECONDS
from atom.swarm.records.manifest import lease_key
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.wire import transport_pb2 as wire
from benchmarks.attacks.share import IDLE
from benchmarks.attacks.tools import (
    FAILED,
    GIVES_UP_S,
    HOSTS,
    Counts,
    Target,
    channel,
    connection,
    lease_forger,
    ready,
)
from tests.attacks import silent_nodes
from tests.attacks.dht_attacker import (
    DHTID,
    REFUSED,
    Attacker,
    attacker_of,
    dht_pb2,
    msgpack,
    nested_tuples,
    store_request,
)
from tests.attacks.fuzz_wire import message_samples, mutated

DEPTH, TUPLES_EVERY_S = 300, 3.0
REPEATS = 90_000
UNKNOWN_EXTENSIONS, LONG_IDS = 100_000, 30
CLAIM, FRESH_EVERY_S = 2**24, 20.0
SILENT_NODES = 20
THREADS = 8
"""Threads of each flood over TLS, spread over the doors."""
HELD = 24
"""Connections that each thread of the flood of connections keeps open."""
MESSAGES_PER_CONNECTION = 64
LARGE = 200_000
QUESTIONS = ("chain/0", "chain/1", "chain/5", "state/" + "00" * 32, "result/" + "00" * 32)


def idle_burner(target: Target) -> None:
    """Take processor time and nothing else: the baseline."""
    ready()
    while True:
        pass


# ---- the DHT


def nested(target: Target) -> None:
    """Send 1.5 kB that ends a node without a strict decoder, every three seconds."""

    async def strike(attacker: Attacker, counts: Counts) -> None:
        await _send(attacker, counts, "rpc_store", store_request(nested_tuples(DEPTH), _soon()))
        await asyncio.sleep(TUPLES_EVERY_S)

    asyncio.run(_at_all_nodes(target, strike))


def repeats(target: Target) -> None:
    """Ask for one key 90,000 times in a request, as fast as the share allows."""
    key = DHTID.generate(lease_key(target.run, target.owner)).to_bytes()
    request = dht_pb2.FindRequest(keys=[key] * REPEATS).SerializeToString()

    async def strike(attacker: Attacker, counts: Counts) -> None:
        await _send(attacker, counts, "rpc_find", request)

    asyncio.run(_at_all_nodes(target, strike))


def log_flood(target: Target) -> None:
    """Send values that make an unguarded node write a line for each of 100,000 extensions."""
    value = msgpack.packb([msgpack.ExtType(1, b"x")] * UNKNOWN_EXTENSIONS)
    long_id = dht_pb2.NodeInfo(node_id=bytes(100))
    find = dht_pb2.FindRequest(keys=[bytes(20)], peer=long_id).SerializeToString()

    async def strike(attacker: Attacker, counts: Counts) -> None:
        await _send(attacker, counts, "rpc_store", store_request(value, _soon()))
        for _ in range(LONG_IDS):
            await _send(attacker, counts, "rpc_find", find)

    asyncio.run(_at_all_nodes(target, strike))


def eclipse(target: Target) -> None:
    """Surround the key of the run's leases with nodes that take every record and return none."""

    async def surround() -> None:
        key = lease_key(target.run, target.owner)
        nodes = await silent_nodes.surround(key, SILENT_NODES, target.dht[0])
        ready()
        Counts().add("nodes", len(nodes))
        await asyncio.Event().wait()

    asyncio.run(surround())


def huge_claim(target: Target) -> None:
    """Publish a lease that claims 2^24 sequences, under a fresh identity every 20 s."""

    async def claim() -> None:
        counts = Counts()
        async with lease_forger(target) as forger:
            ready()
            while True:
                local, ends_at = target.stranger(), time.monotonic() + FRESH_EVERY_S
                while time.monotonic() < ends_at:
                    like = await forger.read()
                    if like and await forger.publish(like, local, sequences=CLAIM):
                        counts.add("leases")
                    await asyncio.sleep(RENEW_SECONDS)
                counts.add("identities")

    asyncio.run(claim())


async def _at_all_nodes(target: Target, strike: Callable[[Attacker, Counts], object]) -> None:
    """Repeat `strike` at each peer's DHT node, side by side."""
    counts = Counts()

    async def at(address: str) -> None:
        while True:
            with contextlib.suppress(*REFUSED, TimeoutError, OSError):
                async with attacker_of(address) as attacker:
                    ready()
                    while True:
                        await strike(attacker, counts)  # type: ignore[misc]
            counts.add("connections lost")
            await asyncio.sleep(1.0)

    await asyncio.gather(*map(at, target.dht))


async def _send(attacker: Attacker, counts: Counts, method: str, request: bytes) -> None:
    try:
        await attacker.send(method, request)
        counts.add("answered")
    except REFUSED:
        counts.add("refused")


def _soon() -> float:
    return time.time() + 10.0


# ---- connections


def connections(target: Target) -> None:
    """Open connections at all doors: some say nothing, others prove a fresh identity and stay."""

    def flood(number: int, counts: Counts) -> None:
        held = list[object]()
        for turn in itertools.count():
            door, host = (number + turn) % len(target.doors), HOSTS[(number + turn) % len(HOSTS)]
            try:
                if turn % 2:
                    held.append(connection(target.doors[door], host))
                else:
                    local = target.stranger()
                    held.append(channel(target, door, local, Purpose.MESSAGES, host))
                counts.add("silent" if turn % 2 else "identities")
            except FAILED:
                counts.add("failed")
            if len(held) > HELD:
                held.pop(0).close()  # type: ignore[attr-defined]

    _in_threads(flood)


def messages(target: Target) -> None:
    """Send messages under fresh identities: true ones, mutated ones, and large ones of no sense."""
    samples = message_samples()

    def flood(number: int, counts: Counts) -> None:
        dice = random.Random(number)
        for turn in itertools.count():
            with contextlib.suppress(*FAILED), _stranger(target, number + turn) as opened:
                for _ in range(MESSAGES_PER_CONNECTION):
                    raw = dice.choice([mutated(samples, dice), dice.choice(samples), bytes(LARGE)])
                    opened.send_frame(Kind.MESSAGE, raw, patience=Patience.within(GIVES_UP_S))
                    counts.add("messages")
            counts.add("connections")

    _in_threads(flood)


def blobs(target: Target) -> None:
    """Ask for pages of the chain and for states under fresh identities; read all answers."""

    def flood(number: int, counts: Counts) -> None:
        for turn in itertools.count():
            with contextlib.suppress(*FAILED):
                door = number + turn
                with _stranger(target, door, Purpose.BLOBS) as opened:
                    for name in itertools.islice(itertools.cycle(QUESTIONS), 1000):
                        patience = Patience.within(GIVES_UP_S)
                        question = wire.BlobRequest(name=name).SerializeToString()
                        opened.send_frame(Kind.BLOB_REQUEST, question, patience=patience)
                        _, length = opened.recv_header(2**26, patience)
                        opened.recv_body(length, patience)
                        counts.add("answers")
            counts.add("connections")

    _in_threads(flood)


def _stranger(
    target: Target, number: int, purpose: Purpose = Purpose.MESSAGES
) -> contextlib.closing[Channel]:
    """Open a channel under a fresh identity, from one of many hosts. Raises: one of FAILED."""
    door, host = number % len(target.doors), HOSTS[number % len(HOSTS)]
    return contextlib.closing(channel(target, door, target.stranger(), purpose, host))


def _in_threads(flood: Callable[[int, Counts], None]) -> None:
    """Run a flood in several threads for ever; a door that refuses everything is tried again."""
    counts = Counts()
    for number in range(THREADS):
        threading.Thread(target=flood, args=(number, counts), daemon=True).start()
    ready()
    threading.Event().wait()


ATTACKS: dict[str, Callable[[Target], None]] = {
    "nested-tuples": nested,
    "find-repeats": repeats,
    "log-flood": log_flood,
    "huge-claim": huge_claim,
    "connections": connections,
    "messages": messages,
    "blobs": blobs,
    "eclipse": eclipse,
}


def main(name: str, target: str) -> None:
    ({IDLE: idle_burner} | ATTACKS)[name](Target(**json.loads(target)))


if __name__ == "__main__":
    main(*sys.argv[1:])
