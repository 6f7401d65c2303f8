"""A swarm of real daemons on shaped lines, and a peer that trains alone: run files, start, counters
of the lines, and faults."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atom.graph.ir import ParameterLayout
from atom.models.gpt3 import GPT3Config, parameter_shapes
from atom.swarm.exchange.codec import Codec
from benchmarks.home.small_round import SmallRound
from benchmarks.shared.daemon_logs import commits
from benchmarks.shared.networks import Home, homes
from benchmarks.shared.real_swarm import SLOW_PEER, Peer, Swarm, gather, swarm_in
from benchmarks.shared.run_text import run_text

LAYERS, HEADS, VOCABULARY = 2, 2, 257
PORT = 7707
"""Port of gradients, states and votes; the DHT has another port."""
BUFFERED_S, LEAST_BUFFER_BYTES = 0.32, 65536
"""Seconds of a line in a send buffer: Linux's four megabytes at 100 Mbit/s."""
QUEUED_S = 0.2
SAMPLED = 1 << 20
FAULTS = ("joining", "frozen", "killed")


@dataclass(frozen=True)
class Terms:
    """Terms of one swarm."""

    peers: int
    undialled: int
    """Number of peers that cannot be dialled: the last ones."""
    joins_later: bool
    """True if a further peer joins later."""
    delay_s: float
    """Delay from one peer to another."""
    rule: str
    codec: str
    model_dim: int
    tokens: int
    """Tokens of a sequence of the small model."""
    small: SmallRound
    validates: bool = False
    """True if each round ends with a validation loss."""

    def run_text(self, name: str, peers: int) -> str:
        model = {"layers": LAYERS, "heads": HEADS, "model_dim": self.model_dim}
        tables: dict[str, dict[str, Any]] = {
            "model": model | {"sequence_tokens": self.tokens},
            "data": {"validation_fraction": 0.05},
            "batch": {
                "global_sequences": self.small.passes * peers, "micro_batch_sequences": 1
            },
            "swarm": {"grace_seconds": 12, "codec": self.codec},
            "snapshot": {"every_rounds": 5},
        }  # fmt: skip
        if self.rule == "local-steps":
            tables["update"] = {"rule": self.rule, "inner_sequences": 1}
        if self.validates:
            tables["validation"] = {"every_rounds": 1}
        return run_text(name, **tables)


def elements_of(model_dim: int, tokens: int) -> int:
    """Return the elements of the small model in an exchange."""
    config = GPT3Config.build(
        vocabulary_size=VOCABULARY, layers=LAYERS, heads=HEADS, model_dim=model_dim,
        sequence_tokens=tokens,
    )  # fmt: skip
    return ParameterLayout.of(parameter_shapes(config)).total_elements


def number_bytes(codec: Codec) -> float:
    """Return the size of a normally distributed number on the wire; the worst case may be more."""
    values = torch.randn(SAMPLED, generator=torch.Generator().manual_seed(1))
    scratch = torch.empty(4 * SAMPLED, dtype=torch.uint8)
    return codec.encode(values, scratch).numel() / SAMPLED


@dataclass
class World:
    """Swarm, the peer alone, and their networks."""

    swarm: Swarm
    alone: Peer
    places: dict[str, Home]
    """Network by the name of a peer of the swarm."""

    def counted(self, peers: Iterable[Peer]) -> list[tuple[int, int]]:
        """Return bytes and packets of `PORT` that have left each peer."""
        return [self.places[peer.name].counted() for peer in peers]


def settle(swarm: Swarm, places: Sequence[Home]) -> None:
    """Put each peer of the swarm into a network, before it starts."""
    for peer, home in zip(swarm.peers, places, strict=True):
        peer.namespace = home.namespace
        peer.configure(listen=home.host)
    swarm.host = places[0].host


@contextmanager
def standing(terms: Terms) -> Iterator[World]:
    """Yield a swarm whose peers all see each other and do not train yet; then shape the lines."""
    names = [f"p{number}" for number in range(terms.peers + terms.joins_later)]
    first_shut = terms.peers - terms.undialled
    shut = [first_shut <= number < terms.peers for number in range(len(names) + 1)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atom-home-")))
        places = stack.enter_context(homes(shut, terms.delay_s))
        swarm = stack.enter_context(swarm_of(folder / "swarm", terms, terms.peers, names))
        alone = stack.enter_context(swarm_of(folder / "alone", terms, 1, ["alone"]))
        settle(swarm, places[:-1])
        settle(alone, places[-1:])
        late = swarm.peers[terms.peers :]
        del swarm.peers[terms.peers :]
        for each in (swarm, alone):
            each.found(standing=True)
        gather(swarm, alone)
        swarm.peers += late
        world = World(swarm, alone.founder, dict(zip(names, places, strict=False)))
        for home in world.places.values():
            shape(home, terms.small.line_bytes_per_s)
        yield world


def shape(home: Home, bytes_per_s: float) -> None:
    """Limit a line, and count its bytes of `PORT`."""
    home.slow_down(f"{bytes_per_s * 8:.0f}bit")
    home.buffer(max(int(BUFFERED_S * bytes_per_s), LEAST_BUFFER_BYTES))
    home.count(PORT, max(int(QUEUED_S * bytes_per_s), LEAST_BUFFER_BYTES))


@contextmanager
def swarm_of(folder: Path, terms: Terms, peers: int, names: Sequence[str]) -> Iterator[Swarm]:
    """Yield a swarm that has so many peers at first."""
    folder.mkdir()
    with swarm_in(folder, terms.run_text(folder.name, peers), names, "auto") as swarm:
        for peer in swarm.peers:
            peer.program = SLOW_PEER
            peer.configure(f"data_port = {PORT}")
        yield swarm


def strike(world: World, kind: str, present: Sequence[Peer]) -> Peer:
    """Begin a fault; return the peer: the last of `present`, or the joining one."""
    if kind == "joining":
        joiner = next(peer for peer in world.swarm.peers if not peer.lives)
        joiner.start("join", world.swarm.address)
        return joiner
    victim = present[-1]
    if kind == "killed":
        victim.kill()
    else:
        victim.freeze(whole_family=True)
    return victim


def after_rounds(world: World, peers: Sequence[Peer], rounds: int, bound_s: float) -> None:
    """Wait until each peer has committed so many more rounds."""
    goals = {peer.name: len(commits(peer.events())) + rounds for peer in peers}
    world.swarm.until(
        lambda: all(len(commits(peer.events())) >= goals[peer.name] for peer in peers),
        f"{rounds} rounds",
        bound_s,
    )
