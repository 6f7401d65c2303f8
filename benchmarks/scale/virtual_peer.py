"""One peer on the virtual clock: its loop carries out the actions of its round machine."""

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from atom.swarm.chain.commit import Ballot, Head, Voter, canonical_digest
from atom.swarm.chain.messages import Message, Prepare
from atom.swarm.identity import Identity
from atom.swarm.records.lease import RENEW_SECONDS, Lease, LeaseBook, PeerState
from atom.swarm.records.manifest import encode_lease
from atom.training.loop import membership_view
from atom.training.replica.pacing import READ_S, SwarmCount, count_swarm, next_pass, reading_pause
from atom.training.round.events import (
    Action,
    Apply,
    Event,
    ExchangeFinished,
    FetchResult,
    Freeze,
    Frozen,
    Phase,
    Received,
    Report,
    ResultFetched,
    Send,
    StartExchange,
    Stepped,
    Thaw,
    Tick,
)
from atom.training.round.machine import RoundMachine
from atom.training.round.round_state import RoundTerms

if TYPE_CHECKING:
    from benchmarks.scale.virtual_world import World

TICK_S, SETTLE_S = 0.1, 0.15
REPLICAS, ASKED = 5, 8
KEY_BYTES, STORED_BYTES, NEIGHBOURS_BYTES = 60, 90, 1200
"""Bytes beside a record: its key in a request; subkey, expiry and frame of a record that is sent;
the answer of a node without the key."""
MICRO_BATCH = 4


@dataclass
class Trigger:
    """Virtual times of one round."""

    sequences: int = 0
    """Sequences of all peers so far."""
    reached: float | None = None
    """Time at which the counts of all peers reached the global batch."""
    asked: float | None = None
    ringing: float | None = None
    """Time at which the last member started the exchange."""
    early: int = 0
    """Attempts that found less than the leases reported."""


class Peer:
    """Loop of one peer."""

    def __init__(
        self, world: "World", identity: Identity, me: Voter, head: Head, terms: RoundTerms
    ) -> None:
        self.world, self.me, self._identity = world, me, identity
        self.machine = RoundMachine(me, head, b"s" * 32, terms, identity.sign, 0.0)
        self.count, self.frozen, self.passing = 0, False, False
        self.freezing: Ballot | None = None
        self._book, self._swarm = LeaseBook(), SwarmCount()
        self._pass_s = world.dice.uniform(0.5, 2.0)
        self._last_pass_ended = float("-inf")
        self._serial, self._published, self._publishing = 0, float("-inf"), False
        self._news: object = None
        self._record_bytes = 0
        for delay_s, act in ((TICK_S, self._tick), (READ_S, self._read)):
            world.after(world.dice.uniform(0, delay_s), act)

    # ---- rhythms

    def _tick(self) -> None:
        self.world.after(TICK_S, self._tick)
        began = time.process_time()
        machine, now = self.machine, self.world.now
        view = membership_view(self._book, machine.head, self.me, self.count, self._pass_s, now)
        self._swarm = count_swarm(machine, view)
        actions = machine.handle(Tick(view), now)
        self.world.cpu_s += time.process_time() - began
        self._carry_out(actions)
        self._publish_if_due()
        self._train()

    def _read(self) -> None:
        self.world.after(self._pause(), self._read)
        found, told = self._fetch()
        self.world.dht_bytes += told
        self.world.after(self.world.dice.uniform(0.02, 0.08), lambda: self._take(found))

    def _pause(self) -> float:
        if self.machine.phase is not Phase.ACCUMULATING:
            return READ_S
        return reading_pause(self.count, self._rate(), self._swarm, self.machine.global_batch)

    def _rate(self) -> float:
        return MICRO_BATCH / self._pass_s

    def _take(self, found: dict[str, Lease]) -> None:
        began = time.process_time()
        self._book.update(found, self.world.now)
        self.world.cpu_s += time.process_time() - began

    def _fetch(self) -> tuple[dict[str, Lease], int]:
        """Return all leases, and the bytes that travel for them."""
        leases = self.world.leases
        records = sum(size + STORED_BYTES for _, size in leases.values())
        asked = ASKED * KEY_BYTES + (ASKED - REPLICAS) * NEIGHBOURS_BYTES
        return {p: lease for p, (lease, _) in leases.items()}, asked + REPLICAS * records

    def _publish_if_due(self) -> None:
        news = self.machine.head.digest, self.machine.phase, self.count
        due = self.world.now - self._published >= RENEW_SECONDS
        if (due or news != self._news) and not self._publishing:
            self._publishing = True
            self.world.after(0.0 if due else SETTLE_S, self._publish)

    def _publish(self) -> None:
        self._publishing, self._published, self._serial = False, self.world.now, self._serial + 1
        self._news = self.machine.head.digest, self.machine.phase, self.count
        lease = self._lease()
        if not self._record_bytes:
            record = encode_lease(lease, "scale", self.world.owner, self._identity, 8.0)
            self._record_bytes = len(record)
        entry = lease, self._record_bytes
        self.world.dht_bytes += REPLICAS * (self._record_bytes + STORED_BYTES)
        delay_s = self.world.dice.uniform(0.02, 0.08)
        self.world.after(delay_s, lambda: self._stored(entry))

    def _stored(self, entry: tuple[Lease, int]) -> None:
        self.world.leases[self.me.peer_id] = entry

    def _lease(self) -> Lease:
        head, stepping = self.machine.head, self.machine.phase is Phase.STEPPING
        return Lease(
            self.me.peer_id,
            self.me.incarnation,
            self._serial,
            1.7e9 + self.world.now,
            PeerState.STEPPING if stepping else PeerState.ACCUMULATING,
            head.digest,
            head.round,
            self.count,
            self._rate(),
            1024 * self._rate(),
            self._pass_s,
            3.1,
            self.machine.state_digest,
            ("203.0.113.7:40000", "192.168.1.7:40000"),
        )

    # ---- counting

    def _train(self) -> None:
        if self.frozen or self.passing or self.machine.phase is Phase.SYNCING:
            return
        batch = self.machine.global_batch
        if next_pass(self.count, self._last_pass_ended, self._swarm, batch, MICRO_BATCH, 1) > 0:
            self.passing = True
            head = self.machine.head.digest
            self.world.after(self._pass_s, lambda: self._end_pass(head))

    def _end_pass(self, head: bytes) -> None:
        self.passing, self._last_pass_ended = False, self.world.now
        if head == self.machine.head.digest:
            self.count += MICRO_BATCH
            self.world.has_counted(head, MICRO_BATCH)
        if self.freezing is not None:
            self._report_frozen()
        self._publish_if_due()
        self._train()

    def _report_frozen(self) -> None:
        ballot, self.freezing, self.frozen = self.freezing, None, True
        assert ballot is not None
        self.handle(Frozen(ballot, self.count, 3.0 * self.count))

    # ---- the machine

    def handle(self, event: Event) -> None:
        began = time.process_time()
        actions = self.machine.handle(event, self.world.now)
        self.world.cpu_s += time.process_time() - began
        self._carry_out(actions)

    def _carry_out(self, actions: list[Action]) -> None:
        world, head = self.world, self.machine.head.digest
        for action in actions:
            match action:
                case Send(to, message):
                    self._send(to, message)
                case Freeze(ballot):
                    self.freezing = ballot
                    if not self.passing:
                        self._report_frozen()
                case Thaw():
                    self.frozen, self.freezing = False, None
                case StartExchange():
                    world.round_of(action.parent).ringing = world.now
                    self._ring(action)
                case FetchResult(digest):
                    world.after(0.2, lambda d=digest: self.handle(ResultFetched(d, True)))
                case Apply():
                    after = self.machine.head
                    self.count, self.frozen, self.freezing = 0, False, None
                    world.stepping.add(self.me.peer_id)
                    world.after(0.1, lambda h=after: self._stepped(h))
                case Report("attempt-ended", fields) if fields["reason"] == "early":
                    world.round_of(head).early += 1

    def _send(self, to: str, message: Message) -> None:
        world = self.world
        if isinstance(message, Prepare):
            this = world.round_of(message.parent)
            this.asked = world.now if this.asked is None else this.asked
        told = world.told_bytes
        told[self.me.peer_id] = told.get(self.me.peer_id, 0) + world.size(message)
        event = Received(self.me.peer_id, self.me.incarnation, message)
        world.after(world.dice.uniform(0.005, 0.05), lambda: world.all[to].handle(event))

    def _ring(self, start: StartExchange) -> None:
        members = self.world.rings.setdefault((start.parent, start.ballot), [])
        members.append(self)
        if len(members) < len(start.members):
            return
        digest = canonical_digest("sum", [start.parent, start.ballot])
        event = ExchangeFinished(start.ballot, digest, 1.0)
        for member in members:
            delay_s = 0.3 + self.world.dice.uniform(0, 0.1)
            self.world.after(delay_s, partial(member.handle, event))

    def _stepped(self, head: Head) -> None:
        self.handle(Stepped(head.digest, canonical_digest("state", [head.digest])))
