"""A running peer: starts its parts, shows its lease, obeys its owner, and knows when to end."""

import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from atom.base.clock import Clock
from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.daemon.console import Console
from atom.daemon.peer.beside_a_twin import HINT, NEW_S, WORDS, came_second
from atom.daemon.peer.herald import Herald
from atom.daemon.peer.kept_contacts import KeptContacts
from atom.daemon.peer.leave_signals import LeaveSignals
from atom.daemon.peer.leaving import LEAVE_S, Leaving, SharedFacts
from atom.daemon.peer.lifecycle import Ending, Facts, ending, ending_note, may_begin
from atom.daemon.peer.parts import Parts
from atom.daemon.peer.portrait import info_of, lease_of, reading_pause_of
from atom.daemon.state_directory import StateDirectory
from atom.swap.voided import PassVoided
from atom.swarm.dht.directory import Directory
from atom.swarm.records.lease import Lease, claims_better
from atom.swarm.records.lease_book import TwinWatch
from atom.training.loop import RoundLoop
from atom.training.replica.worker import STARTING
from atom.training.round import RoundMachine
from atom.training.round.electorate import leaves_them_stuck
from atom.training.round.events import Phase, View

HANG_UP = "SIGHUP"
"""Asks to leave, and never insists, nor does the first signal after it: when a terminal is closed,
the kernel sends one, the shell another, and who ends the login's processes a SIGTERM."""
_LOOK_S = 0.1


class Life:
    """One peer from its first breath to its last. Also the control API's target."""

    def __init__(
        self,
        state: StateDirectory,
        console: Console,
        events: EventSink,
        clock: Clock,
        join_address: str,
    ) -> None:
        self._state = state
        self._console = console
        self._events = events
        self._clock = clock
        self._join_address = join_address
        self.parts: Parts
        self._machine: RoundMachine | None = None
        self._loop: RoundLoop | None = None
        self._wake = threading.Event()
        self._signals = LeaveSignals(self._wake.set)
        self._may_insist = True
        self._failure: BaseException | None = None
        self._serial = 0
        self._gone = False
        self._shared = SharedFacts(Facts(Phase.SYNCING, 0.0))
        self._leaving = Leaving(self._shared, clock)
        self._looked_at: float | None = None
        """When we looked around first."""
        self._contacts = KeptContacts(state.known_addresses, clock)
        self._herald = Herald(console, clock)
        self._twins = TwinWatch()
        self._has_twin = False
        self._watching_since = clock.now()

    # ---- living

    def live(self, directory: Directory) -> Ending:
        """Trains until the run or the owner ends it. Raises: what a part failed with."""
        parts = self.parts
        parts.transport.start()
        parts.control.start()
        parts.wishes.start(self._console.note)
        parts.worker.start()
        parts.turns.serve(parts.pauses, self, self._events)
        digest = self._restored()  # nothing of ours is counted: a signal still ends us at once
        if digest is None:
            return self._say_goodbye(Ending.LEFT)
        with self._signals.heard():
            self._enter_rounds(digest)
            while True:
                self._wake.wait(_LOOK_S)
                self._wake.clear()
                self._require_all_well()
                self._obey_signals()
                verdict = self._look()
                if verdict is not None:
                    return self._say_goodbye(verdict)
                self._contacts.keep(directory.contacts(), parts.storage.room)

    def close(self) -> None:
        """Ends every part, in the order that lets each finish what it holds."""
        parts = self.parts
        self._gone = True
        parts.donors.stop.set()
        parts.wishes.close()
        if self._loop is not None:
            self._loop.close()
        parts.worker.close()
        if self._loop is not None:
            parts.executor.close()
        parts.control.close()
        parts.lookout.close()
        parts.transport.close()
        parts.settings.close()

    def fail(self, failure: BaseException) -> None:
        """A part cannot go on: end the whole peer, its disk state is whole."""
        if self._failure is None:
            self._failure = failure
        self._wake.set()

    def on_pass(self) -> None:
        """A pass ended: the count is news."""
        self.parts.executor.stats.pass_counted()
        if self._loop is not None:
            self._loop.pass_ended()
        self.parts.lookout.nudge()

    def on_void(self, void: PassVoided) -> None:
        """A pass counted for nothing, and earlier ones may be lost with it."""
        if self.parts.executor.voided(void):
            self._console.note(f"{void.message}; {void.hint}")
        self.parts.lookout.nudge()

    def on_change(self) -> None:
        """Head or phase changed."""
        self.parts.lookout.nudge()
        self._wake.set()

    def _restored(self) -> bytes | None:
        """Rebuilds our last state on the worker's thread; its digest. None: not before the deadline
        of a leave."""
        restored = threading.Event()
        digests: list[bytes] = []

        def restore() -> None:
            with suppress(PeerRefused):  # we end: then nobody waits for it
                digests.append(self.parts.executor.begin())
                restored.set()

        self.parts.worker.submit(restore)
        while not restored.wait(_LOOK_S):
            self._require_all_well()
            if ending(self._shared.update(now=self._clock.now())) is not None:
                return None
        return digests[0]

    def _require_all_well(self) -> None:
        """Raises: what a part failed with; StorageError, first, for a state directory that is gone:
        parts fail of that, too, and know no reason."""
        self._state.require_there()
        if self._failure is not None:
            raise self._failure

    def _enter_rounds(self, digest: bytes) -> None:
        parts = self.parts
        machine, self._loop = parts.make_loop(digest)
        self._machine = machine
        head = parts.storage.journal.head
        self._events.emit(
            "started",
            run=parts.member.manifest.run,
            peer=parts.me.peer_id,
            incarnation=parts.me.incarnation.hex(),
            round=head.round,
            head=head.digest.hex(),
            digest=digest.hex(),
        )
        self._loop.start()
        if self._leaving.asked:
            self._loop.leave()
        self._watching_since = self._clock.now()
        parts.lookout.watch(
            self._next_lease,
            self._take_leases,
            self.fail,
            pause=lambda: reading_pause_of(parts, machine),
        )

    def _take_leases(self, leases: dict[str, Lease]) -> None:
        assert self._loop is not None
        assert self._machine is not None
        me = self.parts.me
        self.parts.lookout.directory.known = self._machine.head.known
        if self._twins.sees(leases.get(me.peer_id), me):
            self._beside_a_twin()
        self.parts.outreach.know(leases)
        self._loop.read(leases)
        self._herald.hear(leases)

    def _beside_a_twin(self) -> None:
        if self._has_twin:
            return
        self._has_twin = True
        self._events.emit("same-identity")
        if self._clock.now() - self._watching_since <= NEW_S:
            self.fail(came_second())
        else:
            self._console.note(f"{WORDS}; {HINT}")

    def _obey_signals(self) -> None:
        for name in self._signals.take():
            if not self._leaving.asked:
                self._console.note(f"{name}: leaving (once more: at once)")
                self.leave(None)
            elif name != HANG_UP and self._may_insist:
                self._leaving.sooner(0.0)
            self._may_insist = name != HANG_UP

    @property
    def _facts(self) -> Facts:
        return self._shared.facts

    # ---- the end

    def _break_off_fetching(self) -> None:
        """Who leaves without a part in any round needs no state."""
        syncing = self._machine is not None and self._machine.phase is Phase.SYNCING
        if syncing and not self.counted():
            self._console.note("fetching ends here; what has arrived is kept for the next start")
            self.parts.donors.stop.set()

    def _look(self) -> Ending | None:
        assert self._machine is not None
        assert self._loop is not None
        now = self._clock.now()
        self.parts.pauses.look()
        if self._machine.finished and self._facts.finished_at is None:
            self._shared.update(finished_at=now)
            self.parts.worker.hold("finished")
        view, head, reason = self._loop.view, self._machine.head, self.parts.worker.gate.why_not
        others = view.fresh.values()
        ahead = [lease for lease in others if claims_better(lease, head)]
        behind = sum(lease.head != head.digest for lease in others) - len(ahead)
        facts = self._shared.update(
            phase=self._machine.phase,
            now=now,
            paused=bool(reason),
            sequences=self.parts.worker.own_sequences(head.digest),
            laggards=behind,
            others_stuck=leaves_them_stuck(head, self.parts.me, view),
        )
        if line := self._leaving.news(facts):
            self._console.note(line)
        stats = self.parts.executor.stats
        last = None if stats.last_commit_at is None else stats.last
        missing = self._machine.waiting_for
        self._herald.tell(self.parts.me.peer_id, view, reason, last, missing)
        if math.isfinite(view.seen_at) and not facts.started:
            self._arrive(head.round, ahead)
        return ending(facts)

    def _arrive(self, ours: int, ahead: Sequence[Lease]) -> None:
        """Work begins where nobody is ahead, by the directory, or nobody can show that it is."""
        assert self._machine is not None
        self._herald.arrive(self.parts.me.peer_id, ours, [lease.round for lease in ahead])
        doubted = self._machine.doubted
        now, believed = self._facts.now, sum(lease.peer_id not in doubted for lease in ahead)
        if self._looked_at is None:
            self._looked_at = now
        if may_begin(len(ahead), believed, self._facts.phase, now - self._looked_at):
            self._shared.update(started=True)
            self.parts.worker.release(STARTING)
            self.on_change()

    def on_round_begun(self) -> None:
        """On the worker's thread: a peer that leaves starts nothing new, and others may have the
        device."""
        if self._leaving.asked:
            self._settle()
        self.parts.turns.end_of_round()

    def wants_device(self) -> bool:
        """Whether there is anything to compute now. From any thread."""
        parts = self.parts
        if self._gone or not (parts.pauses.wants_device and parts.worker.has_work):
            return False
        return not self._leaving.asked or self.counted() > 0

    def counted(self) -> int:
        """Sequences of ours that no round has committed yet. From any thread."""
        return self.parts.member.replica.sequences

    def _settle(self) -> None:
        """Also on the worker's thread: settled as soon as nothing of ours is uncommitted."""
        if self._leaving.settles(self.counted(), self.parts.executor.stats.sequences_dropped):
            self.parts.worker.hold("leaving")

    def _say_goodbye(self, verdict: Ending) -> Ending:
        self._gone = True
        machine = self._machine
        head = self.parts.storage.journal.head if machine is None else machine.head
        digest = b"" if machine is None else machine.state_digest
        self._events.emit(
            "left",
            ending=verdict.value,
            round=head.round,
            head=head.digest.hex(),
            digest=digest.hex(),
        )
        self._console.note(ending_note(verdict, head.round))
        return verdict

    def _next_lease(self) -> Lease:
        """Our lease as of now. Called on the lookout's thread."""
        assert self._machine is not None
        self._serial += 1
        return lease_of(self.parts, self._machine, self._facts, self._serial, self._gone)

    # ---- the control API

    def info(self) -> Mapping[str, Any]:
        """What `atom info` shows."""
        view = self._loop.view if self._loop is not None else View()
        return {
            **info_of(self.parts, self._machine, self._facts, view),
            "join_address": self._join_address,
            "state_directory": str(self._state.root),
        }

    def trace(self, ticket: int) -> tuple[int, str, str]:
        """See `atom.daemon.control.Controllable`."""
        watch = self.parts.member.replica.watch
        ticket = ticket or watch.ask()
        trace, summary = watch.trace(ticket, f"{self.parts.member.manifest.run}: one pass")
        return ticket, trace, summary

    def pause(self) -> str:
        said = self.parts.pauses.pause()
        self.on_change()
        return said

    def resume(self) -> str:
        said = self.parts.pauses.resume()
        self.on_change()
        return said

    def reload(self) -> Sequence[Mapping[str, Any]]:
        """See `atom.daemon.control.Controllable`."""
        changed = self.parts.settings.reload()
        if changed:
            self._events.emit("reloaded", keys=[each["key"] for each in changed])
            self.on_change()
        return changed

    def leave(self, deadline_s: float | None) -> str:
        """Sees the counted work committed, then ends; at the deadline at the latest."""
        if self._leaving.asked:
            return self._leave_sooner(deadline_s)
        seconds = LEAVE_S if deadline_s is None else deadline_s
        self._leaving.begin(seconds, self.parts.executor.stats.sequences_dropped)
        self.parts.worker.submit(self._settle)  # before: with nothing counted, no pass begins
        self.parts.worker.ends_with_round = True
        self.parts.pauses.end()
        if self._loop is not None:
            self._loop.leave()
        self._break_off_fetching()
        self._events.emit("leaving", deadline_s=seconds)
        self.on_change()
        return f"leaving once the counted work is committed, in at most {seconds:.0f} s"

    def _leave_sooner(self, deadline_s: float | None) -> str:
        sooner, left_s = self._leaving.sooner(deadline_s)
        if sooner:
            self._events.emit("leaving", deadline_s=deadline_s)
            self.on_change()
        return f"already leaving, {'now ' * sooner}in at most {left_s:.0f} s"
