"""Fuzz everything that a peer decodes from its own connections, and from the DHT as leases.

    python -m tests.attacks.fuzz_wire --inputs 1000000 --seconds 600 [--only messages] [--seed 1]

Real samples are mutated: bits, bytes, numbers at their bounds, slices cut, doubled, moved between
samples. A decoder may return a value or raise PeerRefused; the transport may also lose the
connection (OSError). Anything else, or memory that grows, is a finding: the program prints the
input in hexadecimal and ends with exit code 1. The same seed makes the same inputs.
"""

import argparse
import contextlib
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import psutil

from atom.base.errors import PeerRefused, Reason
from atom.swarm import schema
from atom.swarm.chain import messages
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.commit_chain import pages_beyond
from atom.swarm.chain.messages import MAX_MESSAGE_BYTES
from atom.swarm.identity import Identity
from atom.swarm.records.lease import HowReached, Lease, Link, Reached, SampleText, Validation
from atom.swarm.records.manifest import (
    LEASE_DOMAIN,
    SignedRecord,
    decode_lease,
    encode_lease,
    encode_manifest,
    read_claim,
)
from atom.swarm.state.arenas import ArenaManifest, BlobManifest, chunk_digest, decode_manifest
from atom.swarm.stream import handshake
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.stream.handshake import Local
from atom.swarm.stream.tls import SocketStream, TlsStream, server_context
from atom.wire import transport_pb2 as wire
from tests.swarm.chain_samples import MESSAGES, PEERS, a_commit, beginning, page_of
from tests.swarm.swarm_samples import a_lease, a_manifest, payload_of

MOST_GROWTH_BYTES = 64 * 1024 * 1024
"""Growth of the resident size after the first inputs, which fill caches."""
WARM_UP = 2000
_BOUNDS = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_NEVER = Patience(0.0, -math.inf)

Decode = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """Something that decodes bytes of strangers."""

    decode: Decode
    """Raises: PeerRefused; OSError if the input is a stream."""
    samples: Sequence[bytes]


# ---- mutations


def varint(number: int) -> bytes:
    raw = bytearray()
    while number > 0x7F:
        raw.append(number & 0x7F | 0x80)
        number >>= 7
    raw.append(number)
    return bytes(raw)


def mutated(samples: Sequence[bytes], dice: random.Random) -> bytes:
    """Return one of the samples with one to four changes."""
    raw = bytearray(samples[int(dice.random() * len(samples))])
    for _ in range(1 + int(dice.random() ** 2 * 4)):
        size = len(raw)
        start = int(dice.random() * (size + 1))
        length = int(dice.random() ** 3 * min(size, 64)) + 1
        kind = int(dice.random() * 8)
        if kind == 0 and start < size:
            raw[start] ^= 1 << int(dice.random() * 8)
        elif kind == 1 and start < size:
            raw[start] = int(dice.random() * 256)
        elif kind == 2:
            del raw[start : start + length]
        elif kind == 3:
            raw[start:start] = raw[start : start + length]
        elif kind == 4:
            raw[start : start + 1] = varint(_BOUNDS[int(dice.random() * len(_BOUNDS))])
        elif kind == 5:
            raw[start:start] = dice.randbytes(length)
        elif kind == 6:
            other = samples[int(dice.random() * len(samples))]
            raw[start : start + length] = other[start : start + length]
        elif kind == 7:
            del raw[start:]
    return bytes(raw)


def corpus(samples: Sequence[bytes], dice: random.Random) -> Iterator[bytes]:
    """Yield the samples, then mutations without end."""
    yield from samples
    while True:
        yield mutated(samples, dice)


# ---- what is decoded


class Recorded(SocketStream):
    """A stream, or a socket below TLS, that gives the bytes of a stranger, then ends."""

    def __init__(self, raw: bytes) -> None:
        self._left = memoryview(raw)

    def send_all(self, view: memoryview, patience: Patience) -> None:
        pass

    def recv_some(self, view: memoryview, patience: Patience, wanted: int = 1) -> int:
        count = min(len(view), len(self._left))
        if not count:
            raise ConnectionResetError("closed by the other end")
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def idle(self) -> bool:
        return True

    def close(self) -> None:
        pass


ME = Local(Identity.create(), b"r" * 32, b"i" * 16)
CERTIFICATE = b"certificate"


def frame(kind: Kind, payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + bytes([kind]) + payload


def received_hello(raw: bytes) -> None:
    handshake.receive(Channel(Recorded(raw)), ME, CERTIFICATE, _NEVER)


def received_welcome(raw: bytes) -> None:
    channel = Channel(Recorded(raw))
    channel.purpose = Purpose.RING
    handshake.greet(channel, ME, PEERS[0], CERTIFICATE, _NEVER)


def received_frames(raw: bytes) -> None:
    channel = Channel(Recorded(raw))
    while True:
        kind, length = channel.recv_header(MAX_MESSAGE_BYTES, _NEVER)
        payload = channel.recv_body(length, _NEVER)
        if kind == Kind.REFUSED:
            handshake.refusal(payload, otherwise=Reason.NOT_FOUND)
        elif kind == Kind.MESSAGE:
            decoded_message(payload)


def received_tls(raw: bytes) -> None:
    stream = TlsStream(Recorded(raw[8:]), _server_context(), raw[:8])
    stream.handshake(_NEVER)
    stream.recv_into(memoryview(bytearray(64)), _NEVER)


@cache
def _server_context() -> object:
    return server_context(ME.identity)[0]


def decoded_message(raw: bytes) -> messages.Message:
    message = messages.decode(raw)
    assert messages.decode(messages.encode(message)) == message
    return message


def decoded_lease(payload: bytes) -> Lease:
    """Decode a lease, in place of a payload that its author signed."""
    return decode_lease(schema.encode(SignedRecord(LEASE_DOMAIN, payload, bytes(64))))


def read_chain(genesis: Head, raw: bytes) -> None:
    """A donor that serves these bytes first, then nothing."""
    pages = [raw]
    for _ in pages_beyond([genesis], lambda name, most: pages.pop() if pages else b""):
        pass


# ---- samples


def message_samples() -> list[bytes]:
    return list(map(messages.encode, MESSAGES))


def record_samples() -> list[bytes]:
    me = Identity.create()
    plain = a_lease(me.peer_id)
    full = a_lease(
        me.peer_id,
        reached=Reached.NO,
        links=(Link(b"12345678", 0.25, 1e6), Link(b"abcdefgh", 0.0)),
        validation=Validation.of(3, (1.5, 2.5)),
        sample=SampleText(3, "To be, or not"),
        name="ann",
        reach=HowReached.CALLED,
    )
    leases = [encode_lease(each, "shakespeare", me.peer_id, me, 1.8e9) for each in (plain, full)]
    return [*leases, encode_manifest(a_manifest(me), me)]


def blob_sample() -> bytes:
    arena = ArenaManifest("weights", "float32", 1000, chunk_digest(bytes(4000)))
    return schema.encode(BlobManifest((arena,)))


def chain_samples() -> tuple[Head, list[bytes]]:
    voters = [Identity.create() for _ in range(3)]
    first = beginning(voters[0], trusted=voters)
    head, commits = first, list[Commit]()
    for number in range(1, 5):
        signers = [key for key in voters if key.peer_id in {v.peer_id for v in head.voters}]
        commits.append(a_commit(head, dict.fromkeys(voters[:number], 8), signers))
        head = head.after(commits[-1].value)
    branch = a_commit(head, {voters[0]: 1}, voters[:1], survivors=voters[:1])
    return first, [page_of(commits, 0), page_of(commits[:1], 0), page_of([*commits, branch], 0)]


def hello_samples() -> list[bytes]:
    hello = wire.Hello(
        version=handshake.PROTOCOL_VERSION,
        run_id=ME.run_id,
        peer_id=ME.identity.peer_id,
        incarnation=ME.incarnation,
        purpose=int(Purpose.RING),
        tag=b"tag",
        signature=b"s" * 64,
    )
    return [frame(Kind.HELLO, hello.SerializeToString())]


def welcome_samples() -> list[bytes]:
    version = handshake.PROTOCOL_VERSION
    challenge = wire.Challenge(version=version, nonce=b"n" * 32).SerializeToString()
    welcome = wire.Welcome(incarnation=ME.incarnation).SerializeToString()
    refused = wire.Refused(reason="busy", detail="no room").SerializeToString()
    answers = frame(Kind.WELCOME, welcome), frame(Kind.REFUSED, refused)
    return [frame(Kind.CHALLENGE, challenge) + answer for answer in answers]


def frame_samples() -> list[bytes]:
    refused = wire.Refused(reason="busy", detail="no room").SerializeToString()
    kinds = [frame(Kind.REFUSED, refused), frame(Kind.PING, b""), frame(Kind.CALL, bytes(16))]
    kinds.append(frame(Kind.SEEN, bytes(6)))
    return [frame(Kind.MESSAGE, raw) + kinds[n % 4] for n, raw in enumerate(message_samples())]


def tls_samples() -> list[bytes]:
    """Return the first flight of a client."""
    sent = list[bytes]()

    class Below(Recorded):
        def send_all(self, view: memoryview, patience: Patience) -> None:
            sent.append(bytes(view))

    with contextlib.suppress(ConnectionResetError):  # there is no server
        TlsStream(Below(b"")).handshake(_NEVER)
    return sent


@cache
def targets() -> dict[str, Target]:
    """Return what can be fuzzed, by name."""
    genesis, pages = chain_samples()
    return {
        "messages": Target(decoded_message, message_samples()),
        "leases": Target(decoded_lease, [payload_of(each) for each in record_samples()[:2]]),
        "records": Target(read_claim, record_samples()),
        "blobs": Target(lambda raw: decode_manifest(raw, 1 << 20), [blob_sample()]),
        "chain": Target(partial(read_chain, genesis), pages),
        "hello": Target(received_hello, hello_samples()),
        "welcome": Target(received_welcome, welcome_samples()),
        "frames": Target(received_frames, frame_samples()),
        "tls": Target(received_tls, tls_samples()),
    }


# ---- the run


def fuzz(name: str, inputs: int, seconds: float = math.inf, seed: int = 0) -> Counter[str]:
    """Feed mutations to one target.

    Args:
        name: Key of `targets()`.
        inputs: Mutations at most.
        seconds: Time at most.
        seed: Makes the same mutations of the same samples.

    Returns:
        How many inputs had each outcome: "accepted", or the name of a refusal.

    Raises:
        AssertionError: Memory grew, or a decoder raised something else; the input is in the text.
    """
    target, outcomes = targets()[name], Counter[str]()
    until, before = time.monotonic() + seconds, 0
    for number, raw in enumerate(corpus(target.samples, random.Random(f"{name} {seed}"))):
        if number >= inputs or (number % 256 == 0 and time.monotonic() > until):
            break
        try:
            target.decode(raw)
            outcomes["accepted"] += 1
        except PeerRefused as refused:
            outcomes[refused.reason.value] += 1
        except OSError:
            outcomes["connection lost"] += 1
        except Exception as problem:
            raise AssertionError(f"{name}: {problem!r} for {raw.hex()}") from problem
        if number == WARM_UP:
            before = _resident_bytes()
    growth = _resident_bytes() - (before or _resident_bytes())
    assert growth <= MOST_GROWTH_BYTES, f"{name}: {growth:,} bytes more are resident"
    return outcomes


def _resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def main() -> int:
    parser = argparse.ArgumentParser(description="fuzz what peers decode from each other")
    parser.add_argument("--inputs", type=int, default=100_000, help="for each target")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=sorted(targets()), action="append")
    asked = parser.parse_args()
    for name in asked.only or targets():
        try:
            outcomes = fuzz(name, asked.inputs, asked.seconds, asked.seed)
        except AssertionError as finding:
            sys.stderr.write(f"{finding}\n")
            return 1
        told = dict(outcomes.most_common())
        sys.stdout.write(f"{name}: {sum(outcomes.values()):,} inputs: {told}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
