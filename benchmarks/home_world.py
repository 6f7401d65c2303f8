"""A swarm of real daemons on shaped lines, and one that trains alone beside: run files, starting,
the counters of the lines, and what befalls a peer."""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from home_figures import Reading, commits
from home_networks import Home, homes
from home_scale import SmallRound

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # else it kills some forked children (grpc/grpc#43055)
sys.path += [str(Path(__file__).parents[1] / "tests" / place) for place in (".", "swarm")]
from swarm_of_processes import Peer, Swarm, gather, swarm_in

from atom.graph.ir import ParameterLayout
from atom.models.gpt3 import GPT3Config, parameter_shapes
from atom.swarm.exchange.codec import Codec

HERE = str(Path(__file__).parent)
PROGRAM = ("-c", f"import sys; sys.path.append({HERE!r}); import real_peer; real_peer.main()")
LAYERS, HEADS, VOCABULARY = 2, 2, 257
PORT = 7707
"""Of gradients, states, votes; the DHT has another."""
READ_S = 1.0
BUFFERED_S, LEAST_BUFFER_BYTES = 0.32, 65536
"""Of a line: Linux's four megabytes are so much of 100 Mbit/s."""
QUEUED_S = 0.2
SAMPLED = 1 << 20
FAULTS = ("joining", "frozen", "killed")
RUN = """\
[run]
name = "{name}"
seed = 5

[model]
family = "gpt3"
layers = {layers}
heads = {heads}
model_dim = {model_dim}
sequence_tokens = {tokens}
precision = "float32"

[data]
source = "python-stdlib"
tokenizer = "bytes"
max_bytes = "1 MB"
validation_fraction = 0.05

[batch]
global_sequences = {batch}
micro_batch_sequences = 1

[optimizer]
learning_rate = 1e-3
clip_norm = 1.0

{update}
[swarm]
grace_seconds = 12
codec = "{codec}"

[snapshot]
every_rounds = 5
{validation}"""
LOCAL_STEPS = """\
[update]
rule = "local-steps"
inner_sequences = 1
"""
VALIDATION = """
[validation]
every_rounds = 1
"""


@dataclass(frozen=True)
class Terms:
    """Of one swarm."""

    peers: int
    undialled: int
    """The last of them."""
    joins_later: bool
    """Another one."""
    delay_s: float
    """From one peer to another."""
    rule: str
    codec: str
    model_dim: int
    tokens: int
    """Of a sequence of the small model."""
    small: SmallRound
    validates: bool = False
    """After each round."""

    def run_text(self, name: str, peers: int) -> str:
        return RUN.format(
            name=name,
            layers=LAYERS,
            heads=HEADS,
            tokens=self.tokens,
            model_dim=self.model_dim,
            batch=self.small.passes * peers,
            codec=self.codec,
            update=LOCAL_STEPS if self.rule == "local-steps" else "",
            validation=VALIDATION if self.validates else "",
        )


def elements_of(model_dim: int, tokens: int) -> int:
    """Numbers of the small model, as they are exchanged."""
    config = GPT3Config.build(
        vocabulary_size=VOCABULARY,
        layers=LAYERS,
        heads=HEADS,
        model_dim=model_dim,
        sequence_tokens=tokens,
    )
    return ParameterLayout.of(parameter_shapes(config)).total_elements


def number_bytes(codec: Codec) -> float:
    """Of a number on the wire, with a normal distribution; the worst case may be more."""
    values = torch.randn(SAMPLED, generator=torch.Generator().manual_seed(1))
    scratch = torch.empty(4 * SAMPLED, dtype=torch.uint8)
    return codec.encode(values, scratch).numel() / SAMPLED


@dataclass
class World:
    """The swarm, the one alone, and where they live."""

    swarm: Swarm
    alone: Peer
    places: dict[str, Home]
    """By the name of a peer of the swarm."""
    readings: dict[tuple[str, str], list[Reading]] = field(default_factory=dict)
    """Of their lines, as time goes on: by the same, and "port" (`PORT`'s) or "all"."""
    _over: threading.Event = field(default_factory=threading.Event)

    def read_lines(self) -> None:
        """Until `close`, on this thread."""
        while not self._over.wait(READ_S):
            for name, home in self.places.items():
                for kind, (count, packets) in home.counted().items():
                    reading = Reading(time.time(), count, packets)
                    self.readings.setdefault((name, kind), []).append(reading)

    def close(self) -> None:
        self._over.set()


def settle(swarm: Swarm, places: Sequence[Home]) -> None:
    """Before they start: each peer of the swarm lives in one of these."""
    for peer, home in zip(swarm.peers, places, strict=True):
        peer.namespace = home.namespace
        peer.configure(listen=home.host)
    swarm.host = places[0].host


@contextmanager
def standing(terms: Terms) -> Iterator[World]:
    """Everybody in, on lines without a limit until then, and standing still."""
    names = [f"p{number}" for number in range(terms.peers + terms.joins_later)]
    first_shut = terms.peers - terms.undialled
    shut = [first_shut <= number < terms.peers for number in range(len(names) + 1)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atom-home-")))
        places = stack.enter_context(homes(shut, terms.delay_s))
        swarm = stack.enter_context(_swarm(folder / "swarm", terms, terms.peers, names))
        alone = stack.enter_context(_swarm(folder / "alone", terms, 1, ["alone"]))
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
            _shape(home, terms.small.line_bytes_per_s)
        reader = threading.Thread(target=world.read_lines, daemon=True)
        reader.start()
        stack.callback(reader.join)
        stack.callback(world.close)
        yield world


def _shape(home: Home, bytes_per_s: float) -> None:
    home.slow_down(f"{bytes_per_s * 8:.0f}bit")
    home.buffer(max(int(BUFFERED_S * bytes_per_s), LEAST_BUFFER_BYTES))
    home.count(PORT, max(int(QUEUED_S * bytes_per_s), LEAST_BUFFER_BYTES))


@contextmanager
def _swarm(folder: Path, terms: Terms, peers: int, names: Sequence[str]) -> Iterator[Swarm]:
    """Of so many peers at first."""
    folder.mkdir()
    with swarm_in(folder, terms.run_text(folder.name, peers), names, "auto") as swarm:
        for peer in swarm.peers:
            peer.program = PROGRAM
            peer.configure(f"data_port = {PORT}")
        yield swarm


def strike(world: World, kind: str, present: Sequence[Peer]) -> Peer:
    """What befalls a peer begins now: the last of `present`, or one that comes. Returns it."""
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
    """Returns when each of them has committed so many more."""
    goals = {peer.name: len(commits(peer.events())) + rounds for peer in peers}
    world.swarm.until(
        lambda: all(len(commits(peer.events())) >= goals[peer.name] for peer in peers),
        f"{rounds} rounds",
        bound_s,
    )
