"""A world without time or manners: every message ever sent may arrive now, again, or never.

The simulation's faults are realistic; these are not. Any peer may be shown any view of the
directory, believe any silence, and be interrupted anywhere. Nothing is promised about progress
here, only that nothing false is ever committed.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from simulated_key import identity
from simulated_ring import Result, kept
from simulated_seat import Chain
from simulated_story import Story
from simulated_witness import Witness
from simulation import NAMES

from atom.swarm.chain.commit import Ballot, Commit, Contribution, Voter, canonical_digest, genesis
from atom.swarm.chain.messages import Accept, AcceptedVote, CommitNotice, Message, Promise
from atom.swarm.records.lease import SHOWN, Lease, PeerState
from atom.training.round import Patience, RoundMachine, Terms
from atom.training.round.batch_policy import GlobalBatch
from atom.training.round.events import (
    Action,
    Apply,
    CatchUp,
    CaughtUp,
    ChainFetched,
    Event,
    ExchangeFailed,
    ExchangeFinished,
    FetchChain,
    FetchResult,
    Freeze,
    Frozen,
    KeepResults,
    Phase,
    Received,
    ResultFetched,
    Send,
    StartExchange,
    Stepped,
    StopExchange,
    Thaw,
    Tick,
    Unreachable,
    View,
)

RESTLESS = Patience(
    prevote=3.0,
    promise=0.5,
    quiet=0.0,
    rank=0.0,
    holding=1.0,
    behind=0.5,
    thaw_gap=float("inf"),
    thaw_rest=0.0,
    retry=0.0,
    grace=4.0,
)
BATCH = 2


@dataclass
class _Player:
    """One incarnation and what its loop has to do."""

    name: str
    me: Voter
    machine: RoundMachine
    chain: Chain
    count: int = 1
    frozen: bool = False
    ring: StartExchange | None = None
    results: dict[bytes, Result] = field(default_factory=dict)
    """Held in memory: others can fetch them."""
    lease: Lease | None = None
    """As the directory has it: perhaps of some time ago."""
    due: list[Callable[[], Event | None]] = field(default_factory=list)
    """Events the loop will report, each when the adversary likes; None: not after all."""


class Adversary:
    """Plays one history, `step` by `step`. A broken promise is an AssertionError with the story."""

    def __init__(self, seed: int, peers: int = 3, faults: float = 0.01) -> None:
        self.seed, self.faults = seed, faults
        self.dice = random.Random(seed)
        self.now = 0.0
        self.names: dict[str, str] = {}
        self.story = Story(self.names)
        self.silence: set[tuple[str, str]] = set()
        self.post: list[tuple[Voter, str, Message]] = []
        self.rings: dict[tuple[bytes, Ballot], tuple[tuple[Contribution, ...], set[str]]] = {}
        keys = self.dice.sample(range(24), peers)
        voters = [Voter(identity(key).peer_id, bytes([key]) * 16) for key in keys]
        self.keys = dict(zip((v.peer_id for v in voters), keys, strict=True))
        first = replace(genesis(b"m" * 32, b"s" * 32, voters[0]), voters=tuple(sorted(voters)))
        self.start = Chain((first,), (b"s" * 32,))
        self.witness = Witness(self.start, BATCH)
        self.players: dict[str, _Player] = {}
        for name, voter in zip(NAMES, voters, strict=False):
            self.names[voter.peer_id] = name
            self.players[voter.peer_id] = self._player(name, voter, self.start)

    def _player(self, name: str, me: Voter, chain: Chain) -> _Player:
        terms = Terms(GlobalBatch(BATCH), patience=RESTLESS)
        sign = identity(self.keys[me.peer_id]).sign
        machine = RoundMachine(me, chain.head, chain.state, terms, sign, self.now)
        return _Player(name, me, machine, chain)

    def play(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self.step()
        except AssertionError as error:
            text = f"seed {self.seed}: {error}\n{self.story.text(250)}"
            raise AssertionError(text) from error

    def step(self) -> None:
        player = self.dice.choice(list(self.players.values()))
        if self.dice.random() < 0.005:
            self._deal_silence()
        move = self.dice.random()
        if move < self.faults:
            self._restart(player)
        elif move < 0.55 and self.post:
            self._deliver()
        elif move < 0.75 and player.due:
            event = player.due.pop(self.dice.randrange(len(player.due)))()
            if event is not None:
                self._handle(player, event)
        elif move < 0.9 and player.ring is not None:
            self._advance_ring(player)
        else:
            self._tick(player)

    # ---- moves

    def _deal_silence(self) -> None:
        """Who hears nothing of whom for the next while; what was said meanwhile may come later."""
        share, alone = self.dice.choice([0.0, 0.0, 0.4]), self.dice.choice(list(self.players))
        pairs = itertools.permutations(self.players, 2)
        self.silence = {pair for pair in pairs if alone in pair or self.dice.random() < share}
        if self.dice.random() < 0.3:
            self.silence.clear()

    def _restart(self, player: _Player) -> None:
        keep = self.dice.randrange(1, len(player.chain.heads) + 1)
        chain = player.chain
        if keep < len(chain.heads):
            chain = Chain(chain.heads[:keep], chain.states[:keep], chain.commits[: keep - 1])
        me = Voter(player.me.peer_id, self.dice.randbytes(16))
        self.story.add(self.now, player.name, f"begins anew as {me.incarnation.hex()[:2]}")
        self.players[me.peer_id] = self._player(player.name, me, chain)

    def _deliver(self) -> None:
        recent = self.post[-12:] if self.dice.random() < 0.7 else self.post[-200:]
        sender, target, message = self.dice.choice(recent)
        if (sender.peer_id, target) in self.silence:
            return
        event: Event = Received(sender.peer_id, sender.incarnation, message)
        self._handle(self.players[target], event)

    def _tick(self, player: _Player) -> None:
        self.now += self.dice.choice([0.0, 0.0, 0.1, 0.6, 1.5])
        if not player.frozen:
            player.count += self.dice.randrange(2)
        if self.dice.random() < 0.02:
            self._handle(player, Unreachable(self.dice.choice(list(self.players))))
        self._handle(player, Tick(self._view(player)))

    def _view(self, player: _Player) -> View:
        fresh, dead = {}, set()
        for other in self.players.values():
            if self.dice.random() < 0.5:
                other.lease = _lease(other)
            heard = (other.me.peer_id, player.me.peer_id) not in self.silence
            if other is not player and heard and self.dice.random() < 0.9:
                fresh[other.me.peer_id] = other.lease or _lease(other)
        voters = player.machine.head.voters
        for voter in voters:
            other = self.players[voter.peer_id]
            if other.me != voter and self.dice.random() < 0.5:
                dead.add(voter)
        silence = {v: self.dice.choice([0.0, 3.0, 5.0]) for v in voters if v.peer_id not in fresh}
        return View(fresh, silence, frozenset(dead), player.count)

    def _advance_ring(self, player: _Player) -> None:
        start = player.ring
        assert start is not None
        members, joined = self.rings[start.parent, start.ballot]
        if len(joined) == len(members) and self.dice.random() < 0.8:
            player.ring = None
            digest = canonical_digest("sum", [start.parent, start.ballot, members])
            number = int.from_bytes(start.parent[:6]) * 1000 + start.ballot.attempt
            works = frozenset((m.peer_id, m.incarnation, number) for m in members)
            player.results[digest] = Result(start.parent, digest, 1.0, works)
            player.due.append(lambda: ExchangeFinished(start.ballot, digest, 1.0))
        elif self.dice.random() < 0.3:
            player.ring = None
            suspect = self.dice.choice([*self.players, ""])
            player.due.append(lambda: ExchangeFailed(start.ballot, suspect, "broken"))

    # ---- actions

    def _handle(self, player: _Player, event: Event) -> None:
        if not isinstance(event, Tick):
            self.story.add(self.now, player.name, event)
        for action in player.machine.handle(event, self.now):
            self.story.add(self.now, player.name, action)
            self._carry_out(player, action)

    def _carry_out(self, player: _Player, action: Action) -> None:
        match action:
            case Send(to, message):
                if isinstance(message, CommitNotice):
                    self.witness.sees_commit(message.commit)
                copies = 3 if isinstance(message, Promise | Accept | AcceptedVote) else 1
                self.post.extend([(player.me, to, message)] * copies)
            case Freeze(ballot):
                player.due.append(lambda: self._freeze(player, ballot))
            case Thaw():
                assert player.ring is None, "thawed under a running ring"
                player.frozen = False
            case StartExchange():
                self._start_ring(player, action)
            case StopExchange():
                player.ring = None
            case FetchResult(digest):
                player.due.append(lambda: self._fetch(player, digest))
            case FetchChain(donor):
                player.due.append(lambda: self._fetch_chain(donor))
            case KeepResults(digests):
                assert player.ring is None
                player.results = kept(player.results, digests, player.machine.head.digest)
            case Apply(commit):
                self._apply(player, action, commit)
            case CatchUp():
                player.due.append(lambda: self._catch_up(player))
            case _:
                pass

    def _freeze(self, player: _Player, ballot: Ballot) -> Event:
        player.frozen = True
        return Frozen(ballot, player.count, float(player.count))

    def _start_ring(self, player: _Player, start: StartExchange) -> None:
        assert player.ring is None, "two rings at once"
        assert player.frozen, "a ring over moving gradients"
        mine = [
            (m.incarnation, m.sequences) for m in start.members if m.peer_id == player.me.peer_id
        ]
        assert mine == [(player.me.incarnation, player.count)], "a wrong weight"
        if start.ballot.coordinator == player.me.peer_id:
            self.witness.sees_trigger(start.parent, start.ballot, start.members)
        members, joined = self.rings.setdefault(
            (start.parent, start.ballot), (start.members, set())
        )
        assert members == start.members, "two compositions for one ballot"
        assert player.me.peer_id not in joined, "one ballot's ring started twice"
        joined.add(player.me.peer_id)
        player.ring = start

    def _fetch(self, player: _Player, digest: bytes) -> Event:
        for other in self.players.values():
            if digest in other.results and self.dice.random() < 0.7:
                player.results[digest] = other.results[digest]
                return ResultFetched(digest, is_here=True)
        return ResultFetched(digest, is_here=False)

    def _fetch_chain(self, donor: str) -> Event:
        served = [p.chain.head for p in self.players.values() if p.me.peer_id == donor]
        return ChainFetched(donor, served[0] if served and self.dice.random() < 0.7 else None)

    def _apply(self, player: _Player, action: Apply, commit: Commit) -> None:
        assert player.machine.phase is Phase.STEPPING
        assert player.ring is None, "a step under a running ring"
        assert player.chain.head.digest == commit.value.parent, "a step on another state"
        self.witness.sees_commit(commit)
        chain = player.chain.after(commit, action.head, player.results[commit.value.result_digest])
        player.count, player.frozen = 0, False  # counting goes on under the step
        player.due.append(lambda: self._step(player, chain))

    def _step(self, player: _Player, chain: Chain) -> Event:
        self.witness.sees_state(chain.head, chain.state)
        player.chain = chain
        return Stepped(chain.head.digest, chain.state)

    def _catch_up(self, player: _Player) -> Event:
        assert player.machine.head.digest == player.chain.head.digest, "caught up while stepping"
        best = player.chain
        for other in self.players.values():
            silent = (other.me.peer_id, player.me.peer_id) in self.silence
            if other.chain.head.prefers(best.head) and not silent:
                assert self.witness.vouches_for(other.chain)
                best = other.chain
        if best is not player.chain:
            player.count, player.chain = 0, best
        return CaughtUp(best.head, best.state)


def _lease(player: _Player) -> Lease:
    head = player.machine.head
    return Lease(
        peer_id=player.me.peer_id,
        incarnation=player.me.incarnation,
        serial=0,
        issued_at=0.0,
        state=PeerState.ACCUMULATING,
        head=head.digest,
        round=head.round,
        sequences=player.count,
        sequences_per_s=0.0,
        tokens_per_s=0.0,
        pass_seconds=0.0,
        loss=None,
        state_digest=b"",
        addresses=(),
        branches=head.branches[-SHOWN:],
        branches_before=len(head.branches[:-SHOWN]),
    )
