"""One simulated process: the real machine, and a loop that carries out what it asks for.

The loop is honest and slow: everything takes time, anything may happen in between, and every
action is checked against what the machine's contract promises about it.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from simulated_parts import READ_SECONDS, Fetch, Goodbye, Gradients, Lookout
from simulated_ring import Result, Runner, kept
from simulated_seat import Chain, Seat

from atom.swarm.chain.commit import Head, Voter
from atom.swarm.chain.messages import CommitNotice, Prepare, Prevote, Ring
from atom.swarm.records.lease import PeerState
from atom.swarm.transport.limits import FIRST_HOLD_S, LONGEST_HOLD_S, Backoff, offend
from atom.training.replica.pacing import count_swarm
from atom.training.round import events
from atom.training.round.events import Action, Event
from atom.training.round.head_candidates import AT_ONCE
from atom.training.round.machine import RoundMachine

if TYPE_CHECKING:
    from simulation import Swarm

TICK_SECONDS = 0.3
CarryOut = Callable[[Action], None]
SILENT_DONOR_SECONDS = 5.0
"""How long a donor that is frozen or cut off is waited for."""


class Process:
    """One incarnation of one seat. Begins with `start`, ends with `die`."""

    def __init__(self, swarm: "Swarm", seat: Seat, incarnation: bytes) -> None:
        self.swarm, self.seat = swarm, seat
        self.me = Voter(seat.peer_id, incarnation)
        self.chain = seat.disk
        self.dice = random.Random(incarnation)
        self.machine = RoundMachine(
            self.me, self.chain.head, self.chain.state, swarm.terms, seat.identity.sign, self.now()
        )
        self.results: dict[bytes, Result] = {}
        """Held in memory: others can fetch them."""
        self.alive = True
        self.stopped = False
        self.paused = False
        """Takes part, but computes nothing."""
        self.interruption: tuple[int, Callable[[], None]] | None = None
        """After so many actions this happens, in the middle of carrying them out."""
        self.acts = 0
        """Actions carried out so far."""
        self.backlog: list[Callable[[], None]] = []
        self.gradients = Gradients(self)
        self.told: list[events.Report] = []
        self.offenders = Backoff(FIRST_HOLD_S, LONGEST_HOLD_S)
        self._lookout = Lookout(self)
        self.ring: events.StartExchange | None = None
        """Exchange that the process is in now."""
        self._syncing = False
        self._asked: set[str] = set()
        """Peers whose chains are being fetched."""
        self._goodbye = Goodbye(self)

    @property
    def peer_id(self) -> str:
        return self.me.peer_id

    @property
    def leaving(self) -> bool:
        return self._goodbye.asked

    @property
    def sequences(self) -> int:
        return self.gradients.sequences

    def now(self) -> float:
        """Return the time of this machine's clock: no other machine shows the same."""
        return self.swarm.agenda.now + self.seat.clock_offset_s

    def start(self) -> None:
        self.later(self.dice.uniform(0, TICK_SECONDS), self._tick)
        self.later(self.dice.uniform(0, READ_SECONDS), self._lookout.read)
        self.gradients.start_pass()

    def die(self) -> None:
        self.alive = False
        self.seat.process = None
        self.swarm.tell(self, "dies")

    def suspend(self) -> None:
        """Like SIGSTOP: whatever happens to it waits, or (messages) may be lost."""
        self.stopped = True
        self.swarm.tell(self, "is suspended")

    def resume(self, keep_messages: bool = True) -> None:
        if not self.stopped:
            return
        self.stopped = False
        self.swarm.tell(self, "goes on")
        waiting, self.backlog = self.backlog, []
        for act in waiting:
            if keep_messages or getattr(act, "__name__", "") != "arrival":
                self.later(0.001, act)

    def leave(self) -> None:
        self._goodbye.ask()
        self.handle(events.LeaveRequested())

    def stay(self) -> None:
        """Does not leave after all: the machine says goodbye in its promises, but goes on."""
        self._goodbye = Goodbye(self)

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Run later in this process's own time: not after its death, nor while it is suspended."""
        self.swarm.agenda.after(delay_s, partial(self._when_running, act))

    def _when_running(self, act: Callable[[], None]) -> None:
        if self.stopped:
            self.backlog.append(act)
        elif self.alive:
            act()

    def act_as(self, habit: Callable[[CarryOut, Action], None]) -> None:
        """Lie: each action goes to `habit`, with the function that carries it out honestly."""
        self._carry_out = partial(habit, self._carry_out)  # type: ignore[method-assign]

    # ---- the machine

    def receive(self, sender: Voter, message: object) -> bool:
        """Let a message arrive; return False if the process is dead."""
        if not self.alive:
            return False

        def arrival() -> None:
            self.handle(events.Received(sender.peer_id, sender.incarnation, message))

        self._when_running(arrival)
        return True

    def handle(self, event: Event) -> None:
        """Let the machine handle an event, and carry out its actions at once."""
        if not self.alive:
            return
        before = self.machine.head
        if not isinstance(event, events.Tick):
            self.swarm.tell(self, event)
        actions = self.machine.handle(event, self.now())
        if actions or self.machine.head is not before:
            self._check_head(before, event, actions)
            self._carry_out_all(actions)

    def _carry_out_all(self, actions: list[Action]) -> None:
        for place, action in enumerate(actions):
            self._interrupt_if_due()
            if self.stopped:
                self.backlog.append(partial(self._carry_out_all, actions[place:]))
            if self.stopped or not self.alive:
                return
            self.acts += 1
            self.swarm.tell(self, action)
            self._carry_out(action)

    def _interrupt_if_due(self) -> None:
        if self.interruption is not None and self.acts >= self.interruption[0]:
            _, interrupt = self.interruption
            self.interruption = None
            interrupt()

    def _check_head(self, before: Head, event: Event, actions: list[Action]) -> None:
        after = self.machine.head
        applied = [action for action in actions if isinstance(action, events.Apply)]
        assert len(applied) <= 1, "two steps at once"
        if before.digest == after.digest:
            assert not applied
        elif isinstance(event, events.CaughtUp):
            assert after == event.head
            assert after.prefers(before), "a chain was replaced by one not preferred"
        else:
            assert applied, "the head changed by itself"
            due = self.swarm.witness.head_after(before, applied[0].commit.value)
            assert after == due

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, events.Freeze | events.Thaw | events.Apply) and self.ring is not None:
            self.swarm.rings.stop(self.peer_id, self.ring)
            self.ring = None
        keep = getattr(action, "keep", None)
        if keep is not None:
            assert self.ring is None, "its result may be there already"
            self.results = kept(self.results, keep, self.machine.head.digest)
        match action:
            case events.Send():
                self._send(action)
            case events.Freeze():
                self.gradients.freeze(action)
            case events.Thaw():
                self.gradients.thaw()
            case events.StartExchange():
                self._start_ring(action)
            case events.FetchResult():
                Fetch(self, action).start()
            case events.FetchChain(donor):
                self._fetch_chain(donor)
            case events.Apply():
                self._apply(action)
            case events.CatchUp():
                self._catch_up(action)
            case events.Offence(peer_id, reason):
                offend(self.offenders, peer_id, reason, self.now())
            case events.Report():
                self.told.append(action)

    def _send(self, action: events.Send) -> None:
        assert action.to != self.peer_id, "a message to itself went to the wire"
        if isinstance(action.message, CommitNotice):
            self.swarm.witness.sees_commit(action.message.commit)
        if isinstance(action.message, Ring):
            ring = action.message
            self.swarm.witness.sees_trigger(ring.parent, ring.ballot, ring.members)

        def refused() -> None:
            if self.swarm.network.passes(action.to, self.peer_id):
                self._when_running(lambda: self.handle(events.Unreachable(action.to)))

        deliver = partial(self.swarm.deliver, self.me, action.to, action.message)
        self.swarm.network.send((self.peer_id, action.to), action.message, deliver, refused)

    # ---- ring and result

    def _start_ring(self, action: events.StartExchange) -> None:
        assert self.ring is None, "two rings at once"
        assert self.gradients.frozen, "a ring over moving gradients"
        assert action.parent == self.machine.head.digest == self.chain.head.digest
        assert action.parent == self.gradients.head, "a ring over another head's gradients"
        mine = [m.sequences for m in action.members if m.peer_id == self.peer_id]
        offered = self.gradients.offered
        weight = len(offered) * self.seat.pass_sequences
        assert mine == [weight], "the ring's weight is not what is in memory"
        if action.ballot.coordinator == self.peer_id:
            self.swarm.witness.sees_trigger(action.parent, action.ballot, action.members)
        self.ring = action
        self.swarm.rings.join(Runner(self, offered), action)

    def end_ring(
        self, start: events.StartExchange, event: Event, result: Result | None = None
    ) -> None:
        if result is not None:
            self.results[result.digest] = result
        if self.ring is not None and self.ring.ballot == start.ballot:
            self.ring = None
            self.later(self.dice.uniform(0.0, 0.05), lambda: self.handle(event))

    # ---- states

    def _apply(self, action: events.Apply) -> None:
        assert not self._syncing, "a step while the state is being replaced"
        assert self.chain.head.digest == action.commit.value.parent
        head = self.chain.head.after(action.commit.value)
        self.swarm.witness.sees_commit(action.commit)
        result = self.results[action.commit.value.result_digest]
        self.gradients.drop(head, result.works)
        self.gradients.thaw()  # passes go on under the step
        chain = self.chain.after(action.commit, head, result)
        self.later(self.seat.step_seconds * self.dice.uniform(0.5, 2), lambda: self._step(chain))

    def _step(self, chain: Chain) -> None:
        self._adopt(chain)
        self.handle(events.Stepped(chain.head.digest, chain.state))

    def _fetch_chain(self, donor: str) -> None:
        assert donor not in self._asked, "asked twice at once"
        self._asked.add(donor)
        assert len(self._asked) <= AT_ONCE
        self.later(self._delay_s(donor, 0.05), lambda: self._end_fetch_chain(donor))

    def _end_fetch_chain(self, donor: str) -> None:
        self._asked.remove(donor)
        chain = self._chain_of(donor)
        head, forks = (chain.head, self.chain.forks(chain)) if chain else (None, ())
        self.handle(events.ChainFetched(donor, head, forks))

    def _delay_s(self, donor: str, least_s: float) -> float:
        """Return the delay until the donor's answer is there, or known not to come."""
        silent = self.swarm.silent(self.peer_id, donor)
        return self.dice.uniform(least_s, 1.5) + SILENT_DONOR_SECONDS * silent

    def _catch_up(self, action: events.CatchUp) -> None:
        assert not self._syncing, "two catch-ups at once"
        self._syncing = True
        self.later(self._delay_s(action.donors[0], 0.2), lambda: self._end_catch_up(action))

    def _end_catch_up(self, action: events.CatchUp) -> None:
        """Catch up to the first donor that serves a better chain, as a replica does."""
        self._syncing = False
        ours = self.chain
        served = filter(None, map(self._chain_of, action.donors))
        found = next((chain for chain in served if self._is_better(chain, action)), None)
        if found is not None:
            replayed = ours.head in found.heads and not action.discard
            self.gradients.drop(found.head, found.works if replayed else None)
        self._adopt(found or ours)
        failed = () if found else action.donors
        self.handle(events.CaughtUp(self.chain.head, self.chain.state, failed))

    def _is_better(self, chain: Chain, action: events.CatchUp) -> bool:
        ours, forks = self.chain.head, {each.digest for each in self.chain.forks(chain)}
        if action.forks is not None and not forks <= action.forks:
            return False
        again = action.discard and chain.head.digest == ours.digest
        return again or chain.head.prefers(ours)

    def _chain_of(self, donor: str) -> Chain | None:
        """Return the chain that a donor serves, checked; None if it may not be followed."""
        other = self.swarm.reachable(self.peer_id, donor)
        if other is None or not self.swarm.witness.vouches_for(other.chain):
            return None
        return None if self.chain.rivals(other.chain) else other.chain

    def _adopt(self, chain: Chain) -> None:
        self.chain = chain
        parents = {head.digest for head in chain.heads[-2:]}
        self.results = {d: r for d, r in self.results.items() if r.parent in parents}
        self.swarm.witness.sees_state(chain.head, chain.state)
        lag = self.dice.choice([0.0, 0.0, 1.0, 4.0])
        self.later(lag, lambda: self.seat.write(chain))

    # ---- the directory

    def _tick(self) -> None:
        view = replace(self._lookout.view(), quarantined=self.offenders.held(self.now()))
        self.gradients.swarm = count_swarm(self.machine, view)
        self.handle(events.Tick(view))
        if not self.alive:
            return
        self.gradients.start_pass()
        self._lookout.publish_if_news()
        if self._goodbye.is_over(view):
            self._lookout.publish(PeerState.LEFT)
            self.seat.retired = True
            self.die()
            return
        self.later(TICK_SECONDS * self.dice.uniform(0.9, 1.1), self._tick)


def leads_nothing(honest: CarryOut, action: Action) -> None:
    """Carry out an action unless it is a call of the machine's own. A habit of liars."""
    if not (isinstance(action, events.Send) and isinstance(action.message, Prevote | Prepare)):
        honest(action)
