"""One peer of a run: its parts, its main loop, and the commands of its owner."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from signal import Signals
from typing import Any

from atom.base.clock import BootClock, Clock
from atom.base.errors import IdentityError, PeerRefused
from atom.daemon.control import ControlServer
from atom.daemon.extensions import OpenWishes
from atom.daemon.owner.pauses import Pauses
from atom.daemon.owner.settings import Settings
from atom.daemon.owner.traffic import TrafficCounter, most_round_bytes
from atom.daemon.peer.addresses import KeptContacts
from atom.daemon.peer.box import Box
from atom.daemon.peer.clock_watch import ClockWatch
from atom.daemon.peer.founding import Membership
from atom.daemon.peer.heartbeat import DirectoryThread, Heartbeat
from atom.daemon.peer.lifecycle import (
    LEAVE_S,
    Ending,
    Life,
    ending,
    ending_note,
    may_begin,
    noted_signals,
)
from atom.daemon.peer.news import News
from atom.daemon.peer.run_text import RunText
from atom.daemon.peer.status import Status
from atom.daemon.peer.wiring import (
    recovery_of,
    round_terms,
    run_storage,
    transport_of,
)
from atom.swap.voided import PassVoided
from atom.swarm.addresses import JoinAddress, format_join_address, with_entrances, with_head
from atom.swarm.exchange.codec import codec_named
from atom.swarm.records.lease import (
    PROTOCOL_VERSION,
    Lease,
    Reached,
    SampleText,
    TwinWatch,
    claims_better,
    of_our_version,
    versions_text,
)
from atom.swarm.records.manifest import lease_key
from atom.swarm.transport.lease_exchange import LeaseExchange
from atom.swarm.transport.outreach import Outreach
from atom.training.loop import Inbox, RoundLoop
from atom.training.replica.round_texts import RoundTexts
from atom.training.replica.worker import STARTING, BatchLoader, Worker
from atom.training.round import RoundMachine
from atom.training.round.electorate import leaves_them_stuck
from atom.training.round.events import CaughtUp, Phase
from atom.training.round_executor import RoundExecutor
from atom.training.storage.checkpoints import Checkpoints

HANG_UP = "SIGHUP"
"""Signal that requests a graceful leave; neither it nor the next signal forces an exit.

When a terminal is closed, the kernel sends SIGHUP, the shell sends it again, and the program that
ends the login's processes sends SIGTERM. The user has asked only once.
"""
TWIN_S = 20.0
"""Seconds after its start in which a process that sees another with its key counts as the later."""
TWIN_WORDS = "another process uses this peer's key, and the swarm can count on neither of the two"
TWIN_HINT = "end one of them; for a second peer begin with an empty folder: --state FOLDER"
_LOOK_S = 0.1
_REACHABLE = {"auto": Reached.UNKNOWN, "yes": Reached.YES, "no": Reached.NO}


class Peer:
    """A running peer, from rebuilding its state to leaving the run.

    Its public methods are also called by the control API and the extensions.
    """

    def __init__(
        self,
        box: Box,
        member: Membership,
        directory: DirectoryThread,
        open_wishes: OpenWishes,
        entrance: JoinAddress,
        clock: Clock | None = None,
    ) -> None:
        """Build all parts in the order of their dependencies, and start none.

        Callbacks may name parts that are built later: no part calls back before `run` starts it.
        The caller keeps the state directory locked, and closes `directory` after this peer.
        `entrance` is the address of the run. Raises: UserError.
        """
        clock = clock or BootClock()
        me, run, replica, network = box.me, member.run, member.replica, box.peer.network
        self._box, self._console, self._clock, self._me = box, box.console, clock, me
        self._entrance, self._run_name = entrance, member.manifest.run
        self._events = events = box.events
        # the end of this peer
        self._wake = threading.Event()
        self._failure: BaseException | None = None
        self._gone = False
        self._life = Life(clock)
        self._may_insist = True
        # storage and transport
        codec = codec_named(run.swarm.codec)
        inbox = Inbox(lambda sender, leases: self._heartbeat.hear(sender, leases))
        terms = round_terms(member, codec)
        self._average_bytes = terms.average_bytes
        self._storage = run_storage(box, member, codec, events)
        self._transport = transport_of(box, member, events, inbox, self._storage)
        self._traffic = TrafficCounter(
            box.state.traffic, self._transport.bandwidth.both_ways, clock
        )
        self._stands_by = False
        """True while the peer leaves because the month's traffic allowance is used up."""
        self._outreach = Outreach(self._transport, _REACHABLE[network.reachable], clock, events)
        self._shared, recovery = recovery_of(
            box, member, events, self._transport, self._storage, clock, entrance.head
        )
        # training
        self._text = None if member.text is None else RunText(
            box, member, self._transport, self._storage.room, clock, self._on_text_came, self.fail
        )  # fmt: skip
        samples = member.samples if self._text is None else self._text.samples
        loader = BatchLoader(samples, me.peer_id, run.batch.micro_batch_sequences)
        tells = self._on_pass, self._on_void, self.fail
        self._replica = replica
        self._worker = Worker(replica, loader, terms.global_batch, clock, *tells)
        self._texts = RoundTexts(member.prompts, replica, self._worker, clock, self._on_text)
        self._executor = RoundExecutor(
            self._shared, self._worker, recovery, self._transport, clock, events,
            Checkpoints(box.state.checkpoints, self._storage, box.peer.checkpoints),
            run, inbox.put, self._on_round_begun, self._texts.round_settled,
        )  # fmt: skip
        self._machine = RoundMachine(me, member.genesis, b"", terms, box.identity.sign, clock.now())
        self._loop = RoundLoop(self._machine, self._executor, inbox, self._on_change, self.fail)
        # the owner's commands and settings
        self._pauses = Pauses(self._worker.gate, events, box.state.paused)
        self._wishes = open_wishes(box.peer, self._pauses.wish, self.fail)
        self._settings = Settings(
            box.peer_file, box.peer, self._wishes, self._transport.bandwidth, self._worker.submit
        )
        self._control = ControlServer(self, box.state)
        # the view of the swarm, and this peer's share in it
        self._serial = 0
        self._status = Status(box, member, self._executor, self._machine, self._outreach)
        self._directory = directory.directory
        place = lease_key(self._run_name, member.manifest.owner)
        self._exchange = LeaseExchange(me.peer_id, place, self._transport.public_hosts)
        self._transport.set_neighbours(lambda: self._exchange.neighbours(clock.now()))
        self._heartbeat = Heartbeat(
            directory, self._next_lease, self._take_leases, self._status.reading_pause_s,
            self.fail, events, clock, self._exchange, self._transport.send,
        )  # fmt: skip
        self._contacts = KeptContacts(box.state.known_addresses, clock)
        self._news = News(me.peer_id, clock.now())
        self._twins, self._has_twin = TwinWatch(), False
        self._clock_watch = ClockWatch(me.peer_id, events, box.console.note)
        self._watching_since = self._looked_since = math.inf
        self._other_versions = ""

    # ---- the main loop

    def run(self, greeting: str = "") -> Ending:
        """Train until the run is finished or the peer has left, and return why it ended.

        Args:
            greeting: line for the owner, shown once the state on disk is rebuilt.

        Raises:
            BaseException: the exception with which a part failed.
        """
        self._transport.start()
        self._control.start()
        self._wishes.keep_looking()
        try:
            digest = self._executor.begin()
        except PeerRefused:  # asked to leave during the rebuilding; no work is counted yet
            return self._say_goodbye(Ending.LEFT)
        self._say(greeting)
        with noted_signals() as signals:
            self._enter_rounds(digest)
            while True:
                self._wake.wait(_LOOK_S)
                self._wake.clear()
                self._require_all_well()
                self._obey(signals)
                self._watch_allowance()
                verdict = self._look()
                if verdict is not None:
                    return self._say_goodbye(verdict)
                self._contacts.keep(self._directory.contacts(), self._storage.room)

    def _enter_rounds(self, digest: bytes) -> None:
        """Start the parts that work on rounds. `digest`: of the state from disk; empty if none."""
        head = self._storage.journal.head
        self._events.emit(
            "started",
            run=self._run_name,
            peer=self._me.peer_id,
            incarnation=self._me.incarnation.hex(),
            round=head.round,
            head=head.digest.hex(),
            digest=digest.hex(),
        )
        self._worker.start()
        if (text := self._text) is not None:
            self._worker.gate.why_no_text = lambda: text.why_waiting
            text.start()
        self._loop.start(CaughtUp(head, digest) if digest else None)
        self._watching_since = self._clock.now()
        self._heartbeat.start()

    def _watch_allowance(self) -> None:
        """Leave while the month's remaining traffic still suffices for an orderly leave."""
        use, last = self._executor.stats.use, self._executor.stats.last
        carried = use.sent_bytes + use.received_bytes if use else 0
        members = len(last.contributions) if last else 0
        a_round = most_round_bytes(carried, members, int(self._average_bytes))
        allowed, room = self._settings.network.per_month_bytes, self._storage.room
        why_not = self._traffic.count(allowed, a_round, room).why_not
        if why_not and not self._life.leaves:
            self._console.note(f"leaving: {why_not}")
            self._leave(None)
            self._stands_by = True

    def close(self) -> None:
        """End all parts, in an order in which each part can finish its work."""
        self._gone = True
        self._shared.stop.set()
        self._wishes.close()
        if self._text is not None:
            self._text.close()
        self._loop.close()
        self._worker.close()
        self._executor.close()
        self._control.close()
        self._heartbeat.close()
        self._transport.close()

    def _require_all_well(self) -> None:
        """Raise if the state directory is gone (StorageError), or with the failure of a part.

        The directory comes first: parts fail of its loss, too, but cannot name the cause.
        """
        self._box.state.require_there()
        if self._failure is not None:
            raise self._failure

    def _obey(self, signals: list[int]) -> None:
        while signals:
            name = Signals(signals.pop(0)).name
            if self._stands_by or not self._life.leaves:
                self._console.note(f"{name}: leaving (once more: at once)")
                self.leave(None)
            elif name != HANG_UP and self._may_insist:
                self._life.leave_sooner(0.0)
            self._may_insist = name != HANG_UP

    def _look(self) -> Ending | None:
        self._pauses.look()
        if self._machine.finished and self._life.facts.finished_at is None:
            self._life.update(finished_at=self._clock.now())
            self._worker.hold("finished")
        view, head, reason = self._loop.view, self._machine.head, self._worker.gate.why_not
        others, stuck = view.fresh.values(), leaves_them_stuck(head, self._me, view)
        ahead = [lease for lease in others if claims_better(lease, head)]
        facts = self._life.update(
            phase=self._machine.phase,
            paused=bool(reason),
            sequences=self._shared.sequences_at(head.digest),
            laggards=sum(lease.head != head.digest for lease in others) - len(ahead),
            others_stuck=stuck,
        )
        self._say(self._life.stays_for_others())
        stats = self._executor.stats
        last = None if stats.last_commit_at is None else stats.last
        missing, lacks = self._machine.waiting_for, self._shared.lacks
        for line in self._news.lines(reason, last, view.fresh, missing, facts.now, lacks):
            self._say(line)
        if math.isfinite(view.seen_at) and not facts.started:
            self._arrive(head.round, ahead)
        return ending(facts)

    def _arrive(self, ours: int, ahead: Sequence[Lease]) -> None:
        """Begin to work if no peer claims a better head, or no such claim proved true in time."""
        self._say(self._news.arrival(ours, [lease.round for lease in ahead]))
        doubted, facts = self._machine.doubted, self._life.facts
        believed = sum(lease.peer_id not in doubted for lease in ahead)
        self._looked_since = min(self._looked_since, facts.now)
        if may_begin(len(ahead), believed, facts.phase, facts.now - self._looked_since):
            self._life.update(started=True)
            self._worker.release(STARTING)
            self._on_change()

    def _say(self, line: str) -> None:
        if line:
            self._console.note(line)

    def _say_goodbye(self, verdict: Ending) -> Ending:
        self._gone = True
        self._traffic.write(self._storage.room)
        verdict = Ending.MONTH_USED if self._stands_by else verdict
        digest = self._machine.state_digest  # empty: the state on disk was not rebuilt
        head = self._machine.head if digest else self._storage.journal.head
        told = {"round": head.round, "head": head.digest.hex(), "digest": digest.hex()}
        self._events.emit("left", ending=verdict.value, **told)
        self._console.note(ending_note(verdict, head.round))
        return verdict

    # ---- callbacks of the parts, each on the thread of its part

    def fail(self, failure: BaseException) -> None:
        """End the peer because a part cannot go on. The state on disk stays valid. Thread-safe."""
        if self._failure is None:
            self._failure = failure
        self._wake.set()

    def _on_pass(self) -> None:
        """Announce the new count of sequences after a pass."""
        self._executor.stats.pass_counted()
        self._loop.pass_ended()
        self._heartbeat.nudge()

    def _on_void(self, void: PassVoided) -> None:
        """Record a pass without result, with which gradients of earlier passes may be lost."""
        if self._executor.voided(void):
            self._console.note(f"{void.message}; {void.hint}")
        self._heartbeat.nudge()

    def _on_change(self) -> None:
        """Announce a new head or phase, and wake the main loop."""
        self._heartbeat.nudge()
        self._wake.set()

    def _on_round_begun(self) -> None:
        """Keep a leaving peer from starting new work. Called on the worker's thread."""
        if self._life.leaves:
            self._settle()

    def _on_text_came(self) -> None:
        self._worker.text_came()

    def _on_text(self, sample: SampleText, seconds: float) -> None:
        """Publish a text that the model wrote within `seconds`. Called on the worker's thread."""
        self._executor.stats.sample = sample
        self._events.emit("sample", round=sample.round, text=sample.text, seconds=round(seconds, 3))
        self._say(f"round {sample.round:,} writes, in {seconds:.1f} s: {sample.text}")

    def _settle(self) -> None:
        """Stop working once all our counted work is committed. Called on the worker's thread."""
        if self._life.settles(self._replica.sequences, self._executor.stats.sequences_dropped):
            self._worker.hold("leaving")

    def _next_lease(self) -> Lease:
        """Return our lease as it is now. Called on the directory's thread."""
        self._serial += 1
        self._exchange.know(self._machine.head, self._clock.now())
        return self._status.lease(self._life.facts, self._serial, self._gone)

    def _take_leases(self, leases: dict[str, Lease]) -> None:
        """Pass on a reading of all leases. Called on the directory's thread."""
        others = versions_text(leases.values())
        if others and others != self._other_versions:
            words = "they do not count here until both run the same version"
            self._console.note(f"{others}, this peer runs {PROTOCOL_VERSION}: {words}")
            self._events.emit("other-versions", peers=others)
        self._other_versions = others
        leases = of_our_version(leases)
        self._directory.known = self._machine.head.known
        if self._twins.sees(leases.get(self._me.peer_id), self._me):
            self._beside_a_twin()
        self._clock_watch.look(leases, time.time(), self._clock.now())
        self._outreach.know(leases)
        if self._text is not None:
            syncing = self._machine.phase is Phase.SYNCING
            self._text.look(leases, None if syncing else self._machine.head)
        self._loop.read(leases)
        self._news.hear(self._clock.now())

    def _beside_a_twin(self) -> None:
        """End this process if it is the later of two with one key; else warn its owner once.

        No service may restart it: the restarted process would be the later one again.
        """
        if self._has_twin:
            return
        self._has_twin = True
        self._events.emit("same-identity")
        if self._clock.now() - self._watching_since <= TWIN_S:
            self.fail(IdentityError(TWIN_WORDS, TWIN_HINT))
        else:
            self._console.note(f"{TWIN_WORDS}; {TWIN_HINT}")

    # ---- commands of the control API, from any thread

    def info(self) -> Mapping[str, Any]:
        """Return the figures of `atom info`. Thread-safe."""
        address = with_entrances(self._entrance, self._directory.contacts())
        head = self._machine.head
        pinned = with_head(address, head.round, head.digest, self._box.identity)
        return {
            **self._status.info(self._life.facts, self._loop.view),
            "clock": self._clock_watch.problem or None,
            "versions": self._other_versions or None,
            "traffic": self._traffic.traffic.to_json(),
            "text": None if self._text is None else self._text.figures(),
            # The entrances of other peers are included: this peer may end before the run does.
            "join_address": format_join_address(address),
            "pinned_address": format_join_address(pinned),
            "state_directory": str(self._box.state.root),
        }

    def pause(self) -> str:
        """Pause until `resume`, and return the outcome as text for the owner."""
        said = self._pauses.pause()
        self._on_change()
        return said

    def resume(self) -> str:
        """End the owner's pause, and return the outcome as text for the owner."""
        said = self._pauses.resume()
        self._on_change()
        return said

    def reload(self) -> Sequence[Mapping[str, Any]]:
        """Read the peer file again.

        Returns:
            One entry for each key that has changed: the `key`, and whether the change is `live`.

        Raises:
            UserError: something is refused, and nothing was changed.
        """
        changed = self._settings.reload()
        if changed:
            self._events.emit("reloaded", keys=[each["key"] for each in changed])
            self._on_change()
        return changed

    def leave(self, deadline_s: float | None) -> str:
        """Leave the run: wait until the counted work is committed, then end.

        Args:
            deadline_s: seconds after which the peer ends in any case; None: LEAVE_S, or the
                deadline of a leave that is under way.

        Returns:
            Text for the owner that names the seconds left.
        """
        self._stands_by = False  # the owner's request outranks the allowance as the reason
        return self._leave(deadline_s)

    def _leave(self, deadline_s: float | None) -> str:
        if self._life.leaves:
            return self._leave_sooner(deadline_s)
        seconds = LEAVE_S if deadline_s is None else deadline_s
        self._life.leave(seconds, self._executor.stats.sequences_dropped)
        # Submitted before `ends_with_round` is set: if no work is counted, no pass begins.
        self._worker.submit(self._settle)
        self._worker.ends_with_round = True
        self._pauses.end()
        self._loop.leave()
        if self._machine.phase is Phase.SYNCING and not self._replica.sequences:
            # A peer that has no counted work needs no state in order to leave.
            self._console.note("fetching ends here; what has arrived is kept for the next start")
            self._shared.stop.set()
        self._events.emit("leaving", deadline_s=seconds)
        self._on_change()
        return f"leaving once the counted work is committed, in at most {seconds:.0f} s"

    def _leave_sooner(self, deadline_s: float | None) -> str:
        sooner, left_s = self._life.leave_sooner(deadline_s)
        if sooner:
            self._events.emit("leaving", deadline_s=deadline_s)
            self._on_change()
        return f"already leaving, {'now ' * sooner}in at most {left_s:.0f} s"
