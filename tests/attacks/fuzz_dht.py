"""Fuzzer of the DHT: `python -m tests.attacks.fuzz_dht --inputs N --seconds S [--seed X]`.

It gives N random and mutated inputs to the decoder of values, in this process, and for S seconds
sends requests and answers made in the same way through the socket of a DHT process. That process
runs without the allowance per remote, so that the inputs reach the code behind it.

It fails if an exception other than a refusal is seen, if hivemind's decoder reads an accepted
scalar differently, if the DHT process ends or grows, or if its log does.
"""

import argparse
import asyncio
import contextlib
import math
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from atom.base.errors import PeerRefused
from atom.swarm.dht import client as client_module
from atom.swarm.dht.strict_msgpack import decode
from tests.attacks.dht_attacker import (
    KEY_BYTES,
    REFUSED,
    Attacker,
    Victim,
    attacker_of,
    dht_pb2,
    msgpack,
    nested_tuples,
    store_request,
    victim_in,
)

MAX_GROWTH_BYTES = 64 << 20
"""Bound on the growth of the DHT process's resident memory; allocators keep the memory of one
burst."""
MAX_LOG_BYTES = 64 << 10
SENDERS = 16
"""Requests that are under way at the same time."""
WITHOUT_ALLOWANCE = """
import sys
from atom.swarm.dht import guard, process
guard.UNITS_AT_ONCE = float("inf")
process.main(sys.argv[1:])
"""


def value_seeds() -> list[bytes]:
    """Return valid and invalid values from which mutations start."""
    items = [[f"{number:052}", bytes([number]) * 40, 9e9 + number] for number in range(3)]
    shapes = (items, [], [[["deep"]]], [[1, 2, 3]], [["a", b"b", math.nan]])
    dictionaries = [
        msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([size, 9e9, shape])))
        for size in (math.inf, 5)
        for shape in shapes
    ]
    scalars = (None, True, 7, -9, 2**40, 1.5, "", "text", "x" * 40, b"", b"x" * 300)
    others = ([], [[[1]]], {"a": 1}, msgpack.ExtType(1, b"x"))
    return [*dictionaries, *map(msgpack.packb, (*scalars, *others)), nested_tuples(5)]


def request_seeds(values: list[bytes]) -> list[tuple[str, bytes]]:
    """Return requests from which mutations start, with the methods that they are for."""
    node = dht_pb2.NodeInfo(node_id=bytes(range(KEY_BYTES)))
    pings = [dht_pb2.PingRequest(peer=node, validate=flag) for flag in (False, True)]
    keys = [bytes([number]) * KEY_BYTES for number in range(3)]
    finds = [dht_pb2.FindRequest(keys=keys[:count], peer=node) for count in range(4)]
    return [
        *(("rpc_ping", ping.SerializeToString()) for ping in pings),
        *(("rpc_find", find.SerializeToString()) for find in finds),
        *(("rpc_store", store_request(value, time.time() + 10, 2)) for value in values),
    ]


def mutated(seed: bytes, draw: random.Random) -> bytes:
    """Return the seed with one or more bytes changed, removed, repeated or cut off."""
    raw = bytearray(seed)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = int(draw.random() * (len(raw) + 1))
        match int(draw.random() * 5):
            case 0 if at < len(raw):
                raw[at] = int(draw.random() * 256)
            case 1 if at < len(raw):
                raw[at] ^= 1 << int(draw.random() * 8)
            case 2:
                raw[at:at] = draw.randbytes(1 + int(draw.random() * 4))
            case 3:
                del raw[at : at + 1 + int(draw.random() * 4)]
            case _:
                raw[at:] = raw[: int(draw.random() * 20)]
    return bytes(raw)


def fuzz_decoder(inputs: int, draw: random.Random) -> int:
    """Decode random and mutated values, and return the number of accepted values."""
    seeds, accepted = value_seeds(), 0
    for number in range(inputs):
        if number % 8:
            raw = mutated(seeds[number % len(seeds)], draw)
        else:
            raw = draw.randbytes(int(draw.random() * 64))
        try:
            value = decode(raw)
        except PeerRefused:
            continue
        accepted += 1
        if not isinstance(value, list):
            assert_read_alike(raw, value)
    return accepted


def assert_read_alike(raw: bytes, value: object) -> None:
    """Assert that msgpack reads an accepted scalar as the strict decoder does."""
    try:
        other = msgpack.unpackb(raw)
    except UnicodeDecodeError:
        assert isinstance(value, str)
        return
    is_no_number = isinstance(value, float) and math.isnan(value)
    assert value == other or (is_no_number and math.isnan(other)), raw.hex()


async def fuzz_process(
    seconds: float, draw: random.Random, folder: Path, say: Callable[[str], None] = print
) -> int:
    """Fuzz a DHT process through its socket. Returns: the number of requests sent."""
    with mock.patch.object(client_module, "PROGRAM", ("-c", WITHOUT_ALLOWANCE)):
        async with victim_in(folder) as victim, attacker_of(victim.address) as attacker:
            seeds = request_seeds(value_seeds())
            for method in ("rpc_find", "rpc_ping", "rpc_store"):
                answers = [raw for name, raw in answer_seeds() if name == method]
                await attacker.answer(method, lambda _, raws=answers: mutated_or_random(raws, draw))
            sent, ends_at = [0], time.monotonic() + seconds
            async with asyncio.TaskGroup() as group:
                for _ in range(SENDERS):
                    group.create_task(send_until(ends_at, attacker, seeds, draw, sent))
                group.create_task(read_until(ends_at, victim, say, sent))
            await victim.assert_unharmed()
            assert victim.grown_bytes() < MAX_GROWTH_BYTES
            assert victim.log.stat().st_size < MAX_LOG_BYTES, victim.log.read_text()[-2000:]
            say(f"resident memory grew by {victim.grown_bytes() >> 10} KiB")
    return sent[0]


def answer_seeds() -> list[tuple[str, bytes]]:
    """Return answers from which mutations start, with the methods that they are for."""
    node = dht_pb2.NodeInfo(node_id=bytes(range(KEY_BYTES)))
    results = [
        dht_pb2.FindResult(
            type=kind,
            value=value,
            expiration_time=time.time() + 60,
            nearest_node_ids=[bytes(KEY_BYTES)],
            nearest_peer_ids=[bytes(38)],
        )
        for kind in (0, 1, 2)
        for value in value_seeds()
    ]
    finds = [dht_pb2.FindResponse(results=[result], peer=node) for result in results]
    return [
        *(("rpc_find", find.SerializeToString()) for find in finds),
        ("rpc_ping", dht_pb2.PingResponse(peer=node, dht_time=time.time()).SerializeToString()),
        ("rpc_store", dht_pb2.StoreResponse(store_ok=[True], peer=node).SerializeToString()),
    ]


def mutated_or_random(seeds: list[bytes], draw: random.Random) -> bytes:
    """Return a mutated seed, a seed as it is, or random bytes."""
    kind = draw.random()
    if kind < 0.1:
        return draw.randbytes(int(draw.random() * 200))
    seed = draw.choice(seeds)
    return seed if kind < 0.2 else mutated(seed, draw)


async def send_until(
    ends_at: float,
    attacker: Attacker,
    seeds: list[tuple[str, bytes]],
    draw: random.Random,
    sent: list[int],
) -> None:
    """Send requests one after the other and count them in `sent`."""
    while time.monotonic() < ends_at:
        method, raw = draw.choice(seeds)
        with contextlib.suppress(REFUSED):
            await attacker.send(method, mutated_or_random([raw], draw))
        sent[0] += 1


async def read_until(
    ends_at: float, victim: Victim, say: Callable[[str], None], sent: list[int]
) -> None:
    """Let the victim read keys, so that it asks the attacker, and assert that it still answers."""
    number, said_at = 0, time.monotonic()
    while time.monotonic() < ends_at:
        number += 1
        await victim.fetch(f"key {number % 50}")
        await asyncio.sleep(0.05)
        if time.monotonic() - said_at > 30.0:
            said_at = time.monotonic()
            say(f"{sent[0]} requests, resident memory +{victim.grown_bytes() >> 10} KiB")


def main() -> None:
    """Run the fuzzer with the bounds of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)  # noqa: T201
    draw = random.Random(arguments.seed)
    accepted = fuzz_decoder(arguments.inputs, draw)
    print(f"decoder: {arguments.inputs} inputs, {accepted} accepted", flush=True)  # noqa: T201
    with tempfile.TemporaryDirectory() as folder:
        sent = asyncio.run(fuzz_process(arguments.seconds, draw, Path(folder)))
    print(f"process: {sent} requests", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
