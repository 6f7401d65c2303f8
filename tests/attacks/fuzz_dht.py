"""Fuzzer of the DHT: `python -m tests.attacks.fuzz_dht --inputs N [--seed X]`.

It gives N random and mutated values to the decoder, in this process. Then it sends requests and
answers made in the same way through the socket of a DHT process, until the decoder there was given
N values as well. Instead of libp2p's daemon, a stand-in speaks to that process: `p2pd_stand_in`.

It fails if an exception other than a refusal is seen, if hivemind's decoder reads an accepted
scalar differently, if the DHT process ends or grows, or if its log does.
"""

import argparse
import asyncio
import itertools
import math
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from atom.base.errors import PeerRefused, Reason
from atom.swarm.dht import client as client_module
from tests.attacks.dht_attacker import (
    KEY_BYTES,
    Victim,
    dht_pb2,
    msgpack,
    nested_tuples,
    store_request,
    victim_in,
)
from tests.attacks.fuzz_wire import mutated
from tests.attacks.p2pd_stand_in import AT_ONCE, Request, StandIn

MAX_GROWTH_BYTES = 64 << 20
"""Bound on the growth of the DHT process's resident memory; allocators keep the memory of one
burst."""
MAX_LOG_BYTES = 64 << 10
WITH_STAND_IN = """
import contextlib, pathlib, sys
from atom.swarm.dht import process

running_p2pd = process.running_p2pd

@contextlib.asynccontextmanager
async def with_stand_in(*arguments):
    async with running_p2pd(*arguments):
        yield pathlib.Path({socket!r})

process.running_p2pd = with_stand_in
process.main(sys.argv[1:])
"""
"""Program of a DHT process that talks to the stand-in. Its p2pd runs too, and has nothing to do."""
ANSWERED = "answered"
REFUSALS = "PeerRefused(", "DecodeError(", "AssertionError("
"""Errors with which the process may answer: ours, protobuf's, and those of hivemind's checks."""


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


def fuzz_decoder(inputs: int, draw: random.Random) -> int:
    """Decode random and mutated values, and return the number of accepted values."""
    from atom.swarm.dht.guard import decode_value  # imports hivemind, as the attacker did quietly

    seeds, accepted = value_seeds(), 0
    for _ in range(inputs):
        raw = mutated_or_random(seeds, draw)
        try:
            value = decode_value(raw)
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


@dataclass
class Tally:
    """Count of the bytes that a DHT process took."""

    values: int = 0
    """Values that reached the strict decoder: those of an answered request, and one of a refused
    request, since the first bad value ends it."""
    calls: int = 0
    """Calls of the process, which were answered."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Number of requests by what became of them."""

    def note(self, request: Request, response: Any) -> None:
        """Count the response to a request."""
        error = response.error.decode()
        if not error:
            self.outcomes[ANSWERED] += 1
            self.values += request.values
        elif error.startswith(REFUSALS):
            self.outcomes[re.sub(r"0x[0-9a-f]+|\d+", "N", error)] += 1
            self.values += min(request.values, 1) * (Reason.BUSY.value not in error)
        else:
            self.outcomes[f"{error} for {request.method} {request.raw.hex()}"] += 1


async def fuzz_process(
    inputs: int, draw: random.Random, folder: Path, say: Callable[[str], None] = print
) -> Tally:
    """Fuzz a DHT process through its socket until its decoder was given this many values."""
    tally, seeds, values = Tally(), request_seeds(value_seeds()), value_seeds()
    answers = answer_seeds()

    def respond(method: str) -> bytes:
        tally.calls += 1
        return mutated_or_random([raw for name, raw in answers if name == method], draw)

    stand_in, socket = StandIn(respond, tally.note, draw), folder / "p2pd"
    program = "-c", WITH_STAND_IN.format(socket=str(socket))
    with mock.patch.object(client_module, "PROGRAM", program):
        async with stand_in.listening(socket), victim_in(folder) as victim:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(watch(victim, say, tally))
                while tally.values < inputs:
                    some = [fuzzed_request(seeds, values, draw) for _ in range(AT_ONCE)]
                    await stand_in.send(some)
                await stand_in.until_answered()
                watching.cancel()
            await victim.assert_unharmed()
            assert_within_bounds(victim, tally)
            say(f"resident memory grew by {victim.grown_bytes() >> 10} KiB")
    return tally


def fuzzed_request(
    seeds: list[tuple[str, bytes]], values: list[bytes], draw: random.Random
) -> Request:
    """Return a mutated request, or a good request to store a mutated value."""
    if draw.random() < 0.125:
        method, raw = draw.choice(seeds)
        return Request(method, mutated_or_random([raw], draw))
    return Request("rpc_store", store_request(mutated_or_random(values, draw), time.time() + 10), 1)


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
    return seed if kind < 0.2 else mutated([seed], draw)


async def watch(victim: Victim, say: Callable[[str], None], tally: Tally) -> None:
    """Let the victim read keys, so that it asks its peers, and assert that nothing grows."""
    began_at = said_at = time.monotonic()
    for number in itertools.count():
        await victim.fetch(f"key {number % 50}")
        await asyncio.sleep(0.05)
        now = time.monotonic()
        if now - said_at > 30.0:
            said_at = now
            assert_within_bounds(victim, tally)
            rate, grown = tally.values / (now - began_at), victim.grown_bytes() >> 10
            say(f"{tally.values} values, {rate:.0f} per second, resident memory +{grown} KiB")


def assert_within_bounds(victim: Victim, tally: Tally) -> None:
    """Assert that all errors are refusals, and that neither the memory nor the log has grown."""
    strange = [each for each in tally.outcomes if not each.startswith((ANSWERED, *REFUSALS))]
    assert not strange, strange[:3]
    grown_bytes = victim.grown_bytes()
    assert grown_bytes < MAX_GROWTH_BYTES, f"{grown_bytes:,} bytes more are resident"
    assert victim.log.stat().st_size < MAX_LOG_BYTES, victim.log.read_text()[-2000:]


def main() -> None:
    """Run the fuzzer with the bounds of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    arguments = parser.parse_args()
    say(f"seed {arguments.seed}")
    draw = random.Random(arguments.seed)
    accepted = fuzz_decoder(arguments.inputs, draw)
    say(f"decoder: {arguments.inputs} inputs, {accepted} accepted")
    with tempfile.TemporaryDirectory() as folder:
        tally = asyncio.run(fuzz_process(arguments.inputs, draw, Path(folder), say))
    requests, answers = tally.outcomes.total(), tally.calls
    say(f"process: {tally.values} values, {requests} requests, {answers} answers")
    for outcome, count in tally.outcomes.most_common():
        say(f"{count:>10} {outcome}")


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
