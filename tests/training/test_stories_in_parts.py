"""Stories drawn from a seed: peers that hold parts of the optimizer's state come, die at any moment
of a round, return from their disks and miss rounds. Whoever is at the head has the bits of an
undivided state that took the same steps."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from atom.swap.state_form import HIGH, MASTER, StateForm
from atom.swarm.chain.commit import Ballot, Commit, Voter
from atom.swarm.chain.messages import Promise
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.exchange.held_plan import Holding
from atom.swarm.exchange.stepping import Made
from atom.swarm.identity import Identity, peer_id_of
from atom.swarm.state.arenas import state_digest
from atom.training.exchange import holding_of, result_of
from atom.training.replica.parts_step import PartsStep
from atom.training.replica.replica import Replica
from atom.training.round.attempt import Attempt, Stage
from atom.training.round.electorate import Electorate
from atom.training.round.events import StartExchange
from atom.training.round.holders import mask_of, parts_in
from tests.swarm.chain_samples import INCARNATION, a_commit, beginning, voter_of
from tests.swarm.local_transport import LocalNetwork
from tests.swarm.means import encoded
from tests.training.conftest import NewDevice
from tests.training.peer_in_parts import Peer
from tests.training.replicas_in_parts import EXACT, cut_fine
from tests.training.small_replica import apply, filled, program

FOUNDER = Identity(Ed25519PrivateKey.from_private_bytes(bytes(32)))
ROUNDS, HOLDERS = 14, 2


@dataclass
class Exchange:
    """One that went so far that all members had their means."""

    commit: Commit
    mean: Tensor
    made: dict[str, tuple[Made, PartsStep]] = field(default_factory=dict)
    """By member."""


class Story:
    """The first peer founds the run; it alone votes."""

    def __init__(self, seed: int, new_device: NewDevice, folder: Path, form: StateForm) -> None:
        self.dice, self.folder, self._new_device = random.Random(seed), folder, new_device
        precision = torch.float32 if form is StateForm.EXACT else torch.bfloat16
        self._settings = {"state_form": form, "precision": precision}
        self._program = program(precision=precision)
        self.whole = self._replica()
        self.loaded = MASTER if form is StateForm.EXACT else HIGH
        self.network = LocalNetwork()
        first = self.whole.state_arenas()[self.loaded]
        self.first = beginning(FOUNDER, state_digest({self.loaded: first}))
        self.head = self.first
        self.living = dict[str, Peer]()
        self.dead = dict[str, Path]()
        self.voters = dict[Path, Voter]()
        self.told = self.renewed = 0
        self.join(voter_of(FOUNDER))

    def _replica(self, **settings: bool) -> Replica:
        return filled(self._new_device(), self._program, **self._settings, **settings)  # type: ignore[arg-type]

    def join(self, me: Voter | None = None) -> None:
        folder = self.folder / str(len(self.voters))
        number = len(self.voters)
        self.voters[folder] = me or Voter(peer_id_of(bytes([number]) * 32), INCARNATION)
        self.start(folder)

    def start(self, folder: Path) -> Peer:
        """From what is on its disk."""
        replica, me = self._replica(in_parts=True), self.voters[folder]
        peer = Peer(replica, self.network, folder, self.first, me)
        self.living[me.peer_id] = peer
        self.dead.pop(me.peer_id, None)
        if peer.sync.usable and not peer.storage.snapshots():
            peer.storage.snapshot(*peer.kept.saved(peer.kept.digest()))
        return peer

    def kill(self, name: str) -> None:
        peer = self.living.pop(name)
        peer.replica.finish_step()
        self.dead[name] = next(f for f, v in self.voters.items() if v.peer_id == name)

    def at_the_head(self) -> list[str]:
        return [n for n, peer in self.living.items() if peer.journal.head == self.head]

    def catch_up(self, name: str) -> None:
        donors = [self.living[each].peer_id for each in self.at_the_head()]
        peer = self.living[name]
        problem = peer.sync.run(donors, discard=False)
        assert problem == "", problem
        peer.storage.snapshot(*peer.kept.saved(peer.kept.digest()))

    # ---- a round

    def round(self) -> None:
        here = self.at_the_head()
        attempt = self._promised(self.dice.sample(here, self.dice.randint(1, len(here))))
        lacking = attempt.lacking()
        absent = set(here) - {m.peer_id for m in attempt.members}
        for name in sorted(absent):
            if not lacking.isdisjoint(self.living[name].held.held):
                attempt = self._promised(here)
        attempt.renewed = mask_of(attempt.lacking())
        attempt.begin_anew(HOLDERS)
        self.renewed += bool(attempt.renewed)
        self._decide(self._exchange(attempt))

    def _promised(self, names: list[str]) -> Attempt:
        ballot = Ballot(1, FOUNDER.peer_id, INCARNATION)
        leader = self.living[names[0]]
        attempt = Attempt(
            Electorate(self.head.voters), Stage.PREPARE, 0.0, ballot, parts=leader.held.parts.count
        )
        for name in names:
            peer = self.living[name]
            held, room = mask_of(peer.held.held), leader.held.parts.count
            promise = Promise(self.head.digest, ballot, None, None, 1, 1.0, peer.kept.digest())
            attempt.take(peer.me, replace(promise, holds=held, room=room))
        attempt.members = attempt.contributors(names[0], frozenset(), b"", 64)
        return attempt

    def _exchange(self, attempt: Attempt) -> Exchange:
        number = self.head.round + 1
        names = [member.peer_id for member in attempt.members]
        peers = [self.living[name] for name in names]
        ranges = tuple(map(peers[0].held.parts.range, range(peers[0].held.parts.count)))
        assert attempt.ballot is not None
        start = StartExchange(
            self.head.digest, attempt.ballot, attempt.members, told=self.head.holders
        )
        holding = holding_of(start, ranges)
        mean = torch.randn(self.whole.elements, generator=torch.Generator().manual_seed(number))
        means = [encoded(mean[slice(*each)]) for each in ranges]
        works = [p.replica.parts.step(EXACT, number, p.results.keep_means) for p in peers]
        for rank, work in enumerate(works):
            work.averaged({part: means[part] for part in holding.holds[rank]})
        sums = b"".join(works[0].sums_of(part, each) for part, each in enumerate(means))
        for work in works:
            work.decide(sums)
        given = {
            n: (made, work)
            for n, work, made in zip(names, works, _made(holding, works, means), strict=True)
        }
        digest = result_of(*given[names[0]]).digest
        told = attempt.holders_next(self.head, frozenset(), frozenset(), HOLDERS)
        commit = a_commit(
            self.head, {FOUNDER: 1}, [FOUNDER], result_digest=digest, gradient_norm=works[0].norm,
            parent_state_digest=peers[0].kept.digest(), contributions=attempt.members,
            holders_next=told, renewed=attempt.renewed,
        )  # fmt: skip
        return Exchange(commit, mean, given)

    def _decide(self, exchange: Exchange) -> None:
        """Members die, or their exchanges break, or they go on; one does."""
        value = exchange.commit.value
        self._step_whole(value.renewed, exchange.mean, value.round)
        first, *others = self.dice.sample(sorted(exchange.made), len(exchange.made))
        self._go_on(first, exchange, "goes on")
        self.head = self.head.after(value)
        for name in others:
            self._go_on(
                name,
                exchange,
                self.dice.choice(["goes on"] * 4 + ["breaks", "misses", "dies", "dies late"]),
            )
        if self.dice.random() < 0.1:
            for name in list(self.living):
                self.kill(name)
            for folder in list(self.dead.values()):
                self.start(folder)
            assert self.at_the_head()

    def _go_on(self, name: str, exchange: Exchange, how: str) -> None:
        peer, commit = self.living[name], exchange.commit
        digest = commit.value.result_digest
        if how in ("goes on", "dies late"):
            peer.results.hold(digest, result_of(*exchange.made[name]))
        elif how == "breaks":
            peer.sync.fetch_result(digest, [self.living[n].peer_id for n in self.at_the_head()])
        elif how == "dies":
            self.kill(name)
            return
        else:
            return
        peer.results.check(digest)
        peer.kept.ready(commit.value)
        mean = peer.results.numbers(digest)
        peer.storage.record(commit)
        if how == "dies late":
            self.kill(name)
            return
        peer.replica.begin_step(mean, commit.value.gradient_norm, commit.value.round)
        peer.replica.finish_step()
        assert peer.kept.settled(commit.value) == digest
        peer.results.keep(frozenset())
        if self.dice.random() < 0.3:
            peer.storage.snapshot(*peer.kept.saved(digest))

    def _step_whole(self, renewed: int, mean: Tensor, round: int) -> None:
        arenas, parts = self.whole.state_arenas(), next(iter(self.living.values())).held.parts
        for part in parts_in(renewed):
            for name, arena in arenas.items():
                if name != self.loaded:
                    arena[slice(*parts.range(part))] = 0
        self.whole.load_state(arenas, round - 1)
        apply(self.whole, mean, round)

    # ---- what has to be

    def check(self) -> None:
        arenas = self.whole.state_arenas()
        for name in self.at_the_head():
            peer = self.living[name]
            loaded = peer.replica.state_arenas()[self.loaded]
            assert torch.equal(loaded, arenas[self.loaded])
            for part in peer.held.held:
                for each, arena in peer.held.of(part).items():
                    assert torch.equal(arena, arenas[each][slice(*peer.held.parts.range(part))])


def _made(holding: Holding, works: list[PartsStep], means: list[EncodedMean]) -> Iterator[Made]:
    """What each member has of it in the end."""
    wholes = frozenset[int]().union(*holding.gets)
    made = [works[o].make(p, means[p], p in wholes) for p, o in enumerate(holding.owners)]
    rows = tuple(row for _, row in made)
    for rank, work in enumerate(works):
        held, came = {p: means[p] for p in holding.holds[rank]}, dict[int, Tensor]()
        for part, (start, stop) in enumerate(holding.ranges):
            if part not in held or holding.owners[part] == rank:
                each = work.whole_bytes if part in holding.gets[rank] else work.made_bytes
                came[part] = made[part][0][: each * (stop - start)]
            mine = None if part in held else came[part]
            assert work.problem_of(part, rows[part], held.get(part), mine) is None
        yield Made(rows, held, came)


@pytest.mark.parametrize("form", [StateForm.EXACT, StateForm.SPLIT])
@pytest.mark.parametrize("seed", range(8))
def test_whoever_is_at_the_head_has_the_bits_of_an_undivided_state(
    new_device: NewDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    form: StateForm,
) -> None:
    cut_fine(monkeypatch)
    story = Story(seed, new_device, tmp_path, form)
    try:
        for _ in range(ROUNDS):
            if len(story.voters) < 5 and story.dice.random() < 0.5:
                story.join()
            for folder in list(story.dead.values()):
                if story.dice.random() < 0.4:
                    story.start(folder)
            for name in sorted(set(story.living) - set(story.at_the_head())):
                if story.head.round and story.dice.random() < 0.7:
                    story.catch_up(name)
            story.check()
            story.round()
            story.check()
        assert story.head.round == ROUNDS
    finally:
        story.network.close()
