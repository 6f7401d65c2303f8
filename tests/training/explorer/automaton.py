"""One peer as an automaton whose steps the real machine computes, each once.

A local state is a number. It stands for a real machine and for the few things that its executor
remembers. A step copies the machine, handles the events of one act and looks the outcome up, so the
search of all orders of events costs one call of `RoundMachine.handle` for each new (state, act).
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from atom.base.errors import PeerRefused
from atom.swarm.chain.commit import Ballot, Commit, Head, Value, Voter
from atom.swarm.chain.messages import Message, Prevote, PrevoteAnswer, decode, encode
from atom.training.round import events
from atom.training.round.attempt import Stage
from atom.training.round.electorate import Survivors
from atom.training.round.events import Action, Event, Phase, View
from atom.training.round.machine import RoundMachine

from . import actors
from .actors import TICK_S, Place, forks_of, mean_of, norm_of, offered, place_after
from .snapshots import copy_of, key_of


@dataclass
class Process:
    """A machine and its executor's memory."""

    number: int
    life: int
    machine: RoundMachine
    place: Place
    now: float = 0.0
    exchange: events.StartExchange | None = None
    fetching: dict[bytes, tuple[str, ...]] = field(default_factory=dict)
    """Results asked for, and the peers that are asked."""
    catching_up: events.CatchUp | None = None

    @property
    def voter(self) -> Voter:
        return actors.voter(self.number, self.life)


@dataclass(frozen=True)
class Local:
    """The parts of a local state that the world looks at."""

    number: int
    life: int
    place: Place
    alive: bool
    phase: Phase | None = None
    reducing: events.StartExchange | None = None
    fetching: tuple[bytes, ...] = ()
    attempt: tuple[Ballot, Stage] | None = None
    promised: tuple[tuple[Survivors, Ballot], ...] = ()
    leaving: bool = False

    @property
    def head(self) -> Head:
        return self.place.head


@dataclass(frozen=True)
class Voted:
    """A vote as its signer meant it: the message names the ballot only."""

    number: int
    life: int
    ballot: Ballot
    value: Value
    survivors: Survivors


@dataclass(frozen=True)
class Vouching:
    """A process vouched for a value of an ordinary round at a ballot."""

    number: int
    life: int
    parent: bytes
    ballot: Ballot
    value: bytes


@dataclass
class Outcome:
    """Everything that one act caused."""

    after: int
    sent: list[tuple[int, Message]] = field(default_factory=list)
    """Receivers' numbers and messages."""
    started: list[events.StartExchange] = field(default_factory=list)
    froze: list[Ballot] = field(default_factory=list)
    averaged: list[events.StartExchange] = field(default_factory=list)
    made: list[bytes] = field(default_factory=list)
    """Digests of the results that are here now."""
    vouched: list[Vouching] = field(default_factory=list)
    voted: list[Voted] = field(default_factory=list)
    applied: list[tuple[Place, Commit]] = field(default_factory=list)
    """Commits and the places that they were applied at."""
    moved: tuple[Place, Place] | None = None
    """Places before and after a catch-up."""
    offences: list[events.Offence] = field(default_factory=list)
    trouble: str | None = None
    """The exception that the machine raised."""
    ballots: int = 0
    """Ballots begun here."""
    facts: int | None = None
    """Bits of all that it adds to a state (`World`); None: nobody asked yet."""


class Automaton:
    """All local states found so far, and the steps between them."""

    def __init__(self, branches: bool) -> None:
        self._branches = branches
        self._processes: list[Process | None] = []
        self.locals: list[Local] = []
        self._numbers: dict[Any, int] = {}
        self._steps: dict[tuple[int, Any], Outcome] = {}

    def begin(self, number: int, life: int, place: Place) -> int:
        """Return the local state of a process that has just started."""
        key = "new", number, life, place
        if key not in self._numbers:
            machine = actors.new_machine(number, life, place, self._branches)
            self._numbers[key] = self._number_of(Process(number, life, machine, place))
        return self._numbers[key]

    def dead(self, before: int) -> int:
        """Return the local state of that process once it crashed: its disk is left."""
        was = self.locals[before]
        key = "dead", was.number, was.life, was.head.digest
        if key not in self._numbers:
            self._numbers[key] = len(self.locals)
            self.locals.append(Local(was.number, was.life, was.place, alive=False))
            self._processes.append(None)
        return self._numbers[key]

    def step(self, state: int, act: tuple[Any, ...]) -> Outcome:
        """Return the outcome of an act: its kind, then its arguments (see `_Run`)."""
        known = self._steps.get((state, act))
        if known is None:
            known = self._steps[state, act] = self._run(state, act)
        return known

    def _run(self, state: int, act: tuple[Any, ...]) -> Outcome:
        process = self._processes[state]
        assert process is not None
        run = _Run(copy_of(process, {}))
        try:
            getattr(run, act[0])(*act[1:])
        except Exception as error:  # noqa: BLE001 - any exception is the finding
            run.outcome.trouble = f"the machine raised {type(error).__name__}: {error}"
            run.outcome.after = state
            return run.outcome
        run.outcome.after = self._number_of(run.process)
        return run.outcome

    def _number_of(self, process: Process) -> int:
        if process.machine.phase is not Phase.REDUCING:
            process.exchange = None
        key = key_of(process)
        if key not in self._numbers:
            self._numbers[key] = len(self.locals)
            self.locals.append(_local(process))
            self._processes.append(process)
        return self._numbers[key]


def _local(process: Process) -> Local:
    context = process.machine._context
    attempt = process.machine._coordinator.attempt
    led = (attempt.ballot, attempt.stage) if attempt and attempt.ballot else None
    return Local(
        process.number,
        process.life,
        process.place,
        alive=True,
        phase=context.phase,
        reducing=process.exchange,
        fetching=tuple(sorted(process.fetching)),
        attempt=led,
        promised=tuple(context.state.acceptor.promised.items()),
        leaving=context.leaving,
    )


@lru_cache(1 << 14)
def _is_well_formed(message: Message) -> bool:
    try:
        return decode(encode(message)) == message
    except (PeerRefused, OverflowError):
        return False


class _Run:
    """One act of one process. Each public method is a kind of act."""

    def __init__(self, process: Process) -> None:
        self.process, self.machine = process, process.machine
        self.outcome = Outcome(-1)
        self.asked: list[str] = []
        """Donors whose chains are being fetched."""

    def hear(self, sender: Voter, message: Message) -> None:
        self._handle(events.Received(sender.peer_id, sender.incarnation, message))

    def tick(self, view: View, seconds: float) -> None:
        """Let timers expire. Pre-votes are answered with yes at once: an answer changes nothing at
        the voter that gives it, and may be as old as it likes."""
        self.process.now += seconds
        before = self.machine._context.highest_attempt
        self._handle(events.Tick(view))
        attempt = self.machine._coordinator.attempt
        if attempt is not None and attempt.stage is Stage.PREVOTE:
            for elector in attempt.electorate.voters:
                if elector.peer_id in view.fresh:
                    self.hear(elector, PrevoteAnswer(self.machine.head.digest))
        self.outcome.ballots = self.machine._context.highest_attempt - before

    def finish(self) -> None:
        start = self.process.exchange
        assert start is not None
        digest, norm = mean_of(start.ballot, start.members)
        self._has(digest)
        self.outcome.averaged.append(start)
        self._handle(events.ExchangeFinished(start.ballot, digest, norm))

    def fail(self) -> None:
        start = self.process.exchange
        assert start is not None
        self._handle(events.ExchangeFailed(start.ballot, "", "ring-broken"))

    def fetched(self, digest: bytes, in_memory: bool) -> None:
        self.process.fetching.pop(digest)
        if in_memory:
            self._has(digest)
        self._handle(events.ResultFetched(digest, in_memory, norm_of(digest)))

    def overtaken(self, claim: View, place: Place) -> None:
        """A donor shows a preferred head and serves the chain that leads there, checked."""
        self.process.now += TICK_S
        self._handle(events.Tick(claim))
        for donor in self.asked:
            forks = forks_of(place, self.process.place)
            self._handle(events.ChainFetched(donor, place.head, forks))
            self._handle(events.Tick(claim))

    def caught_up(self, place: Place) -> None:
        """Move to a donor's place, unless a branch leads there that we have not agreed to."""
        agreed = self.process.catching_up.forks if self.process.catching_up else None
        forks = {head.digest for head in forks_of(place, self.process.place)}
        if agreed is not None and not forks <= agreed:
            place = self.process.place
        self.process.catching_up = None
        self.outcome.moved = self.process.place, place
        self.process.place = place
        self._handle(events.CaughtUp(place.head, place.state_digest))

    def leave(self) -> None:
        self._handle(events.LeaveRequested())

    # ---- the executor

    def _has(self, digest: bytes) -> None:
        self.outcome.made.append(digest)

    def _handle(self, event: Event) -> None:
        acceptor = self.machine._context.state.acceptor
        accepted, vouched = dict(acceptor.accepted), dict(acceptor.vouched)
        parent = self.machine.head.digest
        actions = self.machine.handle(event, self.process.now)
        self._note_votes(parent, accepted, vouched)
        for action in actions:
            self._execute(action)

    def _note_votes(
        self, parent: bytes, before: dict[Survivors, Any], vouched: dict[Ballot, Value]
    ) -> None:
        context = self.machine._context
        acceptor = context.state.acceptor
        if context.head.digest != parent:
            acceptor = context._left[parent]
        who = self.process.number, self.process.life
        for ballot, value in acceptor.vouched.items():
            if vouched.get(ballot) != value and not value.survivors:
                said = Vouching(*who, parent, ballot, value.digest())
                self.outcome.vouched.append(said)
        for slot, accepted in acceptor.accepted.items():
            if before.get(slot) != accepted:
                self.outcome.voted.append(Voted(*who, accepted.ballot, accepted.value, slot))

    def _execute(self, action: Action) -> None:
        match action:
            case events.Send(to, message):
                if not _is_well_formed(message):
                    self.outcome.trouble = "said something that others refuse as malformed"
                elif not isinstance(message, Prevote | PrevoteAnswer) and to in actors.NUMBERS:
                    self.outcome.sent.append((actors.NUMBERS[to], message))
            case events.Freeze(ballot):
                self.outcome.froze.append(ballot)
                self._handle(offered(self.process.number, ballot))
            case events.StartExchange():
                self.process.exchange = action
                self.outcome.started.append(action)
            case events.FetchResult(digest, holders):
                self.process.fetching[digest] = holders
            case events.FetchChain(donor):
                self.asked.append(donor)
            case events.CatchUp():
                self.process.catching_up = action
            case events.Apply(commit):
                self._apply(commit)
            case events.Offence():
                self.outcome.offences.append(action)

    def _apply(self, commit: Commit) -> None:
        place = self.process.place
        self.outcome.applied.append((place, commit))
        self.process.place = place_after(place, commit)
        self.process.fetching.clear()
        self._handle(
            events.Stepped(self.process.place.head.digest, self.process.place.state_digest)
        )
