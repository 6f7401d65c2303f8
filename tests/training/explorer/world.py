"""A state of all peers and the network, and everything that can happen next.

Messages are never removed once sent: their receiver may get one now, later, twice or never. So
loss, delay, repetition and partition need no state of their own. A state is the number of each
peer's local state (`Automaton`), the set of facts as bits of one integer, and the budget.
"""

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, NamedTuple

from atom.swarm.chain import messages
from atom.swarm.chain.commit import Ballot, Voter, is_quorum, valid_votes
from atom.training.round.attempt import Stage
from atom.training.round.events import BETWEEN_STATES, Phase, StartExchange

from . import actors
from .actors import LONG_S, TICK_S, Place, voter
from .automaton import Automaton, Local, Outcome, Voted
from .bounds import Bounds, Budget
from .liar import Liar

NOTHING = Outcome(-1)
"""Outcome of a fault: no machine did anything."""
LIAR = -1
"""Local state of the peer that lies."""


class Letter(NamedTuple):
    """A message on its way."""

    to: int
    sender: Voter
    message: Any


class Started(NamedTuple):
    """A peer entered an exchange."""

    number: int
    life: int
    start: StartExchange


class Holds(NamedTuple):
    """A process has this result in memory."""

    number: int
    life: int
    digest: bytes


class Froze(NamedTuple):
    """A process offered its count to a ballot."""

    number: int
    life: int
    ballot: Ballot


class Finished(NamedTuple):
    """A process finished an exchange."""

    number: int
    life: int
    start: StartExchange


class Applied(NamedTuple):
    """An honest peer applied a commit."""

    number: int
    parent: bytes
    value: bytes
    by_quorum: bool
    signers: frozenset[Voter]


class State(NamedTuple):
    locals: tuple[int, ...]
    facts: int
    budget: Budget


Move = tuple[Any, ...]
"""The number of the peer that acts, then the act (`Automaton.step`) or a fault."""


class Step(NamedTuple):
    """A move, the state that it leads to, and everything that it caused."""

    move: Move
    after: State
    outcome: Outcome


class World:
    """All moves from a state, in an order that never changes."""

    def __init__(self, bounds: Bounds, tidies: bool = True) -> None:
        """`tidies`: forget letters that cannot matter any more (`_is_obsolete`)."""
        self.bounds = bounds
        self.automaton = Automaton(bounds.branches)
        self.facts: list[Any] = []
        self._bits: dict[Any, int] = {}
        self._letters_to = [0] * bounds.peers
        """Per receiver: the bits of letters."""
        self._inert: dict[int, int] = {}
        """Per local state: letters that change nothing."""
        self._obsolete: dict[int, tuple[int, int]] = {}
        """Per local state: bits of the letters looked at, and of the obsolete ones."""
        self._tidies = tidies and not bounds.refusals
        self.first = actors.first_place(bounds.peers)
        self.places: dict[bytes, Place] = {self.first.head.digest: self.first}
        self.votes = 0
        """Bits of votes."""
        self.liar = (
            Liar(bounds.liar, bounds.lying_ballots, bounds.values, bounds.splits)
            if bounds.lies
            else None
        )
        self.liars = {self.liar.me} if self.liar else set[Voter]()
        self._lies: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._heard: dict[tuple[int, int], Outcome] = {}
        """Outcomes of letters by local state and bit: a letter's own hash is slow."""

    def start(self) -> State:
        locals_ = [self.automaton.begin(n, 0, self.first) for n in range(self.bounds.peers)]
        if self.liar is not None:
            locals_[self.bounds.liar] = LIAR
        return State(tuple(locals_), 0, self.bounds.budget)

    def local(self, state: State, number: int) -> Local | None:
        """Return the local state of an honest peer; None for the liar."""
        at = state.locals[number]
        return None if at == LIAR else self.automaton.locals[at]

    def living(self, state: State) -> list[Local]:
        """Return the local states of all living honest peers."""
        honest = (self.automaton.locals[at] for at in state.locals if at != LIAR)
        return [local for local in honest if local.alive]

    def bit(self, fact: Any) -> int:
        """Return the bit of a fact."""
        key = type(fact), fact  # as tuples, facts of two kinds may be equal
        number = self._bits.get(key)
        if number is None:
            number = self._bits[key] = len(self.facts)
            self.facts.append(fact)
            if isinstance(fact, Letter):
                self._letters_to[fact.to] |= 1 << number
            elif isinstance(fact, Voted):
                self.votes |= 1 << number
        return 1 << number

    def is_true(self, state: State, fact: Any) -> bool:
        number = self._bits.get((type(fact), fact))
        return number is not None and bool(state.facts >> number & 1)

    def known(self, facts: int) -> Iterator[Any]:
        """Yield the facts of a set."""
        while facts:
            lowest = facts & -facts
            yield self.facts[lowest.bit_length() - 1]
            facts ^= lowest

    # ---- moves

    def steps(self, state: State) -> Iterator[Step]:
        for number, at in enumerate(state.locals):
            if at == LIAR:
                continue
            local = self.automaton.locals[at]
            if local.alive:
                yield from self._deliveries(state, number, at)
                yield from self._acts(state, number, local)
                yield from self._lied(state, number, local)
            yield from self._faults(state, number, local)

    def _deliveries(self, state: State, number: int, at: int) -> Iterator[Step]:
        coming = state.facts & self._letters_to[number] & ~self._inert.get(at, 0)
        while coming:
            bit = coming & -coming
            coming ^= bit
            letter = self.facts[bit.bit_length() - 1]
            act = "hear", letter.sender, letter.message
            outcome = self._heard.get((at, bit))
            if outcome is None:
                outcome = self._heard[at, bit] = self.automaton.step(at, act)
            step = self._step_to(state, number, act, outcome)
            if step is None:
                self._inert[at] = self._inert.get(at, 0) | bit
            else:
                yield step

    def _acts(self, state: State, number: int, local: Local) -> Iterator[Step]:
        budget = state.budget
        for seen, seconds in product(self._sights(state, number, local), (TICK_S, LONG_S)):
            if seconds == LONG_S and local.phase is not Phase.PROMISED:
                continue
            step = self.step(state, number, ("tick", seen, seconds))
            if step is None:
                continue
            ballots = step.outcome.ballots
            if ballots and local.head.round < self.bounds.rounds and budget.ballots >= ballots:
                yield self._paid(step, ballots=budget.ballots - ballots)
            elif not ballots and local.attempt is not None and seconds == TICK_S:
                yield step  # a deadline of the ballot that it leads
            elif not ballots and budget.ticks:
                yield self._paid(step, ticks=budget.ticks - 1)
        if local.phase is Phase.REDUCING:
            if local.reducing is not None and self._all_started(state, local.reducing):
                yield from self._maybe(state, number, ("finish",))
            yield from self._lost(state, number, ("fail",))
        for digest in local.fetching:
            if self._is_held(state, digest):
                yield from self._maybe(state, number, ("fetched", digest, True))
            yield from self._lost(state, number, ("fetched", digest, False))
        yield from self._chains(state, number, local)

    def _maybe(self, state: State, number: int, act: tuple[Any, ...]) -> Iterator[Step]:
        step = self.step(state, number, act)
        if step is not None:
            yield step

    def _lost(self, state: State, number: int, act: tuple[Any, ...]) -> Iterator[Step]:
        if state.budget.losses:
            for step in self._maybe(state, number, act):
                yield self._paid(step, losses=state.budget.losses - 1)

    def _sights(self, state: State, number: int, local: Local) -> Iterator[actors.Sight]:
        """Yield the views that may be seen: all others, or any of them and silence."""
        if not (state.budget.ticks or state.budget.ballots or local.attempt):
            return
        shown = self.bounds.sees[number] if self.bounds.sees else actors.NAMES[: self.bounds.peers]
        seen_numbers = (actors.NAMES.index(name) for name in shown)
        others = [self._voter_at(state, n) for n in seen_numbers if n != number]
        dead = frozenset(
            v for v in local.head.voters if actors.NUMBERS[v.peer_id] != number
            and self._voter_at(state, actors.NUMBERS[v.peer_id]) != v
        )  # fmt: skip
        yield actors.sight(local.head, frozenset(others), dead, False)
        if self.bounds.branches:
            for size in range(len(others) + bool(self.bounds.sees)):
                for seen in combinations(others, size):
                    yield actors.sight(local.head, frozenset(seen), dead, True)

    def _voter_at(self, state: State, number: int) -> Voter:
        local = self.local(state, number)
        return voter(number, local.life if local else 0)

    def _all_started(self, state: State, start: StartExchange) -> bool:
        """Return True if each honest member has entered this exchange; the liar is in all."""
        honest = (m for m in start.members if state.locals[actors.NUMBERS[m.peer_id]] != LIAR)
        return all(
            self.is_true(state, Started(actors.NUMBERS[m.peer_id], m.incarnation[0], start))
            for m in honest
        )

    def _is_held(self, state: State, digest: bytes) -> bool:
        """Return True if a living process or the liar has this result."""
        if self.liar is not None and digest in self.liar.results:
            return True
        return any(
            self.is_true(state, Holds(local.number, local.life, digest))
            for local in self.living(state)
        )

    def _chains(self, state: State, number: int, local: Local) -> Iterator[Step]:
        """Yield the ways to follow another peer's chain: two donors with one head are alike."""
        heads = set[bytes]()
        for other in self.living(state):
            if other.number == number or other.phase is Phase.SYNCING:
                continue
            if other.head.digest in heads:
                continue
            heads.add(other.head.digest)
            again = local.phase is Phase.SYNCING and other.head.digest == local.head.digest
            if not again and not other.head.prefers(local.head):
                continue
            if local.phase is Phase.SYNCING:
                yield from self._maybe(state, number, ("caught_up", other.place))
            elif local.phase not in BETWEEN_STATES and state.budget.chases:
                claim = actors.claim(other.head, voter(other.number, other.life))
                for step in self._maybe(state, number, ("overtaken", claim, other.place)):
                    yield self._paid(step, chases=state.budget.chases - 1)
        if local.phase is Phase.SYNCING:
            yield from self._lost(state, number, ("caught_up", local.place))

    def _lied(self, state: State, number: int, local: Local) -> Iterator[Step]:
        if self.liar is None or not state.budget.lies:
            return
        for message in self._lies_to(state, number, local):
            step = self.step(state, number, ("hear", self.liar.me, message))
            if step is not None:
                yield self._paid(step, lies=state.budget.lies - 1)

    def _lies_to(self, state: State, number: int, local: Local) -> tuple[Any, ...]:
        """Return all that the liar may say to this peer, each once."""
        assert self.liar is not None
        heard = state.facts & self._letters_to[self.bounds.liar]
        votes = state.facts & self.votes
        key = number, local.life, local.head.digest, heard, votes
        if key not in self._lies:
            letters = [(each.sender, each.message) for each in self.known(heard)]
            voted = [
                (voter(each.number, each.life), each.ballot, each.value)
                for each in self.known(votes)
                if not each.survivors and each.value.parent == local.head.digest
            ]
            said = self.liar.may_say(voter(number, local.life), local.place, letters, voted)
            self._lies[key] = tuple(dict.fromkeys(said))
        return self._lies[key]

    def _faults(self, state: State, number: int, local: Local) -> Iterator[Step]:
        budget, at = state.budget, state.locals[number]
        if local.alive and budget.crashes and actors.NAMES[number] in self.bounds.faulty:
            at = self.automaton.dead(at)
            died = Step((number, "crash"), self._with(state, number, at), NOTHING)
            yield self._paid(died, crashes=budget.crashes - 1)
        if not local.alive and budget.restarts:
            born = self.automaton.begin(number, local.life + 1, local.place)
            after = self._with(state, number, born, 0)
            yield self._paid(
                Step((number, "restart"), after, NOTHING), restarts=budget.restarts - 1
            )
        if local.alive and budget.leaves and not local.leaving:
            step = self.step(state, number, ("leave",))
            if step is not None:
                yield self._paid(step, leaves=budget.leaves - 1)

    # ---- what a move leads to

    def step(self, state: State, number: int, act: tuple[Any, ...]) -> Step | None:
        """Return the step; None if it changes nothing."""
        outcome = self.automaton.step(state.locals[number], act)
        return self._step_to(state, number, act, outcome)

    def _step_to(
        self, state: State, number: int, act: tuple[Any, ...], outcome: Outcome
    ) -> Step | None:
        if outcome.facts is None:
            outcome.facts = self._facts_of(number, state, outcome)
        facts = outcome.facts
        if outcome.after == state.locals[number] and not facts & ~state.facts:
            told = outcome.trouble is not None or outcome.offences
            return Step((number, *act), state, outcome) if told else None
        return Step((number, *act), self._with(state, number, outcome.after, facts), outcome)

    def _with(self, state: State, number: int, at: int, facts: int = 0) -> State:
        locals_ = (*state.locals[:number], at, *state.locals[number + 1 :])
        facts |= state.facts
        if self._tidies:
            for receiver, local in enumerate(locals_):
                if local != LIAR:
                    facts &= ~self._obsolete_letters(receiver, local, facts)
        return State(locals_, facts, state.budget)

    def _paid(self, step: Step, **left: int) -> Step:
        after = step.after._replace(budget=step.after.budget._replace(**left))
        return step._replace(after=after)

    def _facts_of(self, number: int, state: State, outcome: Outcome) -> int:
        """Return the bits of all that an outcome adds."""
        local = self.automaton.locals[state.locals[number]]
        me, facts = voter(number, local.life), 0
        for to, message in outcome.sent:
            if self.bounds.refusals or not isinstance(
                message, messages.Nack | messages.Abort | messages.Suspect
            ):
                facts |= self.bit(Letter(to, me, message))
        who = number, local.life
        found: list[Any] = [Started(*who, start) for start in outcome.started]
        found += [Froze(*who, ballot) for ballot in outcome.froze]
        found += [Finished(*who, start) for start in outcome.averaged]
        found += [Holds(*who, digest) for digest in outcome.made]
        for fact in (*found, *outcome.vouched, *outcome.voted):
            facts |= self.bit(fact)
        for place, commit in outcome.applied:
            after = actors.place_after(place, commit)
            self.places.setdefault(after.head.digest, after)
            ordinary = not commit.survivors
            named = place.head.digest, commit.value.digest(), ordinary
            facts |= self.bit(Applied(number, *named, frozenset(valid_votes(commit))))
        return facts

    def _obsolete_letters(self, receiver: int, at: int, facts: int) -> int:
        seen, obsolete = self._obsolete.get(at, (0, 0))
        new = facts & self._letters_to[receiver] & ~seen
        if new:
            local = self.automaton.locals[at]
            seen |= new
            while new:
                bit = new & -new
                new ^= bit
                if self._is_obsolete(local, self.facts[bit.bit_length() - 1].message):
                    obsolete |= bit
            self._obsolete[at] = seen, obsolete
        return obsolete

    def _is_obsolete(self, local: Local, message: Any) -> bool:
        """Return True if the receiver can only ignore or refuse this message from now on."""
        if not local.alive:
            return not self.bounds.restarts
        if self.bounds.branches:
            return False
        if isinstance(message, messages.CommitNotice):
            return message.commit.value.round <= local.head.round
        place = self.places.get(message.parent)
        if place is not None and place.head.round < local.head.round:
            return True
        if message.parent != local.head.digest:
            return False
        if isinstance(message, messages.Promise):
            return local.attempt != (message.ballot, Stage.PREPARE)
        if isinstance(message, messages.Vouched | messages.AcceptedVote):
            return local.attempt is None or local.attempt[0] != message.ballot
        promised = [ballot for _, ballot in local.promised]
        if isinstance(message, messages.Prepare):
            return any(ballot >= message.ballot for ballot in promised)
        calls = isinstance(message, messages.Accept | messages.Ring)
        return calls and any(ballot > message.ballot for ballot in promised)


def certifiable(state: State, world: World, parent: Place) -> set[bytes]:
    """Return the digests of values that a quorum, the liar with it, signs at this head."""
    votes: dict[tuple[Any, bytes], set[Voter]] = {}
    for fact in world.known(state.facts & world.votes):
        if not fact.survivors and fact.value.parent == parent.head.digest:
            signers = votes.setdefault((fact.ballot, fact.value.digest()), set())
            signers.add(voter(fact.number, fact.life))
    return {
        value for (_, value), signers in votes.items()
        if is_quorum(parent.head.voters, signers | world.liars)
    }  # fmt: skip
