"""One peer of a run: its life, from rebuilding its state to leaving, and its owner's commands.

The peer has two large parts: `Training` works on the replica, and `Reach` connects it to the swarm.
Both send their failures, and lines for the owner, to the main loop here through one queue.
"""

import math
import queue
from collections.abc import Mapping, Sequence
from contextlib import suppress
from signal import Signals
from typing import Any

from atom.base.clock import BootClock, Clock
from atom.base.errors import PeerRefused
from atom.daemon.owner.pauses import Pauses
from atom.daemon.owner.settings import Settings
from atom.daemon.owner.traffic import TrafficCounter, most_round_bytes
from atom.daemon.owner.wishes import OwnersWishes
from atom.daemon.peer import lifecycle
from atom.daemon.peer.box import Box
from atom.daemon.peer.founding import Membership, PeerContext
from atom.daemon.peer.heartbeat import DirectoryThread
from atom.daemon.peer.lifecycle import Ending, Life
from atom.daemon.peer.news import News
from atom.daemon.peer.reach import Reach, Status
from atom.daemon.peer.training import Training, run_storage
from atom.swarm.addresses import JoinAddress
from atom.swarm.records.lease import Lease, claims_better
from atom.training.replica.worker import STARTING
from atom.training.round.electorate import leaves_them_stuck

_LOOK_S = 0.1
"""Longest time between two looks at signals, the life and the disk."""

SEED_NOTE = "the run is finished; this peer serves its state, text and chain until `atom leave`"


class Peer:
    """A running peer, from rebuilding its state to leaving the run.

    Its public methods are also called by the control API and the extensions.
    """

    def __init__(
        self,
        box: Box,
        member: Membership,
        directory: DirectoryThread,
        entrance: JoinAddress,
        clock: Clock | None = None,
    ) -> None:
        """Build all parts, and start none. Raises: UserError.

        The caller keeps the state directory locked, and closes `directory` after this peer.
        `entrance` is the address of the run.
        """
        self._reports = queue.SimpleQueue[str | BaseException]()
        """Reports of all parts; an empty line only wakes the main loop."""
        context = PeerContext(box, member, clock or BootClock(), self._reports.put)
        self._box, self._life = box, Life(context.clock)
        self._news, storage = News(box.me.peer_id, context.clock.now()), run_storage(box, member)
        self._reach = reach = Reach(context, directory, storage, entrance, self._news)
        self._training = training = Training(
            context, storage, reach.transport, reach.inbox, entrance.head, self._change
        )
        self._status = Status(box, member, training, reach.outreach, self._life)
        line, submit = reach.transport.bandwidth, training.worker.submit
        self._traffic = TrafficCounter(box.state.traffic, line.total_bytes, context.clock)
        self._pauses = Pauses(training.worker.gate, box.events, box.state.paused)
        self._wishes = OwnersWishes(box.peer, self._pauses.wish, context.report)
        self._settings = Settings(box.peer_file, box.peer, self._wishes, line, submit, box.options)

    # ---- the main loop

    def run(self, greeting: str = "") -> Ending:
        """Train until the run is finished or the peer has left, and return why it ended.

        Args:
            greeting: line for the owner, shown once the state on disk is rebuilt.

        Raises:
            BaseException: the exception with which a part failed.
        """
        self._reach.transport.start()
        self._wishes.keep_looking()
        try:
            digest = self._training.executor.begin()
        except PeerRefused:  # asked to leave during the rebuilding; no work is counted yet
            return self._say_goodbye(Ending.LEFT)
        self._say(greeting)
        with lifecycle.noted_signals() as signals:
            self._enter_rounds(digest)
            while True:
                self._take_reports()
                self._box.state.require_there()
                self._obey(signals)
                self._watch_allowance()
                verdict = self._look()
                if verdict is not None:
                    return self._say_goodbye(verdict)
                self._reach.keep_contacts(self._training.shared.storage.room)

    def _change(self) -> None:
        """Renew our lease soon, and let the main loop look at once. Thread-safe."""
        self._reach.nudge()
        self._reports.put("")

    def _take_reports(self) -> None:
        """Handle all waiting reports; if there are none, wait up to `_LOOK_S` for the first.

        Raises:
            BaseException: the failure of a part, which cannot go on.
        """
        with suppress(queue.Empty):
            report = self._reports.get(timeout=_LOOK_S)
            while isinstance(report, str):
                self._say(report)
                report = self._reports.get_nowait()
            # Parts fail of the loss of the state directory, too, but cannot name the cause.
            self._box.state.require_there()
            raise report

    def _enter_rounds(self, digest: bytes) -> None:
        """Start the parts that work on rounds.

        Args:
            digest: digest of the state from disk; empty if there is none.
        """
        head, me = self._training.shared.storage.journal.head, self._box.me
        self._box.events.emit(
            "started",
            run=self._status.member.manifest.run,
            peer=me.peer_id,
            incarnation=me.incarnation.hex(),
            round=head.round,
            head=head.digest.hex(),
            digest=digest.hex(),
        )
        self._training.start(digest)
        self._reach.start(self._status)

    def _watch_allowance(self) -> None:
        """Leave while the month's remaining traffic still suffices for an orderly leave."""
        stats = self._training.executor.stats
        carried = stats.use.sent_bytes + stats.use.received_bytes if stats.use else 0
        members = len(stats.last.contributions) if stats.last else 0
        a_round = most_round_bytes(carried, members, int(self._training.terms.average_bytes))
        allowed, room = self._settings.network.per_month_bytes, self._training.shared.storage.room
        why_not = self._traffic.count(allowed, a_round, room).why_not
        if why_not and not self._life.leaves:
            self._say(f"leaving: {why_not}")
            self._leave(None)
            self._life.stands_by = True

    def close(self) -> None:
        """End all parts, in an order in which each part can finish its work."""
        self._life.update(gone=True)
        self._wishes.close()
        self._training.close()
        self._reach.close()

    def _obey(self, signals: list[int]) -> None:
        while signals:
            name = Signals(signals.pop(0)).name
            insists = self._life.insists(name)
            if self._life.stands_by or not self._life.leaves:
                again = "" if name == lifecycle.HANG_UP else " (repeat the signal to leave at once)"
                self._say(f"{name}: leaving{again}")
                self.leave(None)
            elif insists:
                self._life.leave_sooner(0.0)

    def _look(self) -> Ending | None:
        """Update the facts, show what is new, and return why the peer ends; None: it goes on."""
        training, head = self._training, self._training.machine.head
        self._pauses.look()
        if training.has_settled:
            self._life.settled()
        if training.machine.finished and self._life.finished():
            training.worker.hold("finished")
            self._say(self._settings.network.seed * SEED_NOTE)
        view, reason = training.loop.view, training.worker.gate.why_not
        others = view.fresh.values()
        ahead = [lease for lease in others if claims_better(lease, head)]
        facts = self._life.update(
            phase=training.machine.phase,
            paused=bool(reason),
            sequences=training.sequences,
            work_dropped=training.has_dropped_work,
            is_seed=self._settings.network.seed,
            laggards=sum(lease.head != head.digest for lease in others) - len(ahead),
            others_stuck=leaves_them_stuck(head, self._box.me, view),
        )
        self._say(self._life.stays_for_others())
        stats, lacks = training.executor.stats, training.shared.lacks
        last = None if stats.last_commit_at is None else stats.last
        missing = training.machine.waiting_for
        silent_s = self._reach.outreach.silent_s
        for line in self._news.lines(reason, last, view.fresh, missing, facts.now, lacks, silent_s):
            self._say(line)
        if math.isfinite(view.seen_at) and not facts.started:
            self._arrive(head.round, ahead)
        return lifecycle.ending(facts)

    def _arrive(self, ours: int, ahead: Sequence[Lease]) -> None:
        """Begin to work if no peer claims a better head, or no such claim proved true in time."""
        self._say(self._news.arrival(ours, [lease.round for lease in ahead]))
        doubted = self._training.machine.doubted
        if self._life.may_begin(len(ahead), sum(each.peer_id not in doubted for each in ahead)):
            self._life.update(started=True)
            self._training.worker.release(STARTING)
            self._reach.nudge()

    def _say(self, line: str) -> None:
        if line:
            self._box.console.note(line)

    def _say_goodbye(self, verdict: Ending) -> Ending:
        self._life.update(gone=True)
        self._traffic.write(self._training.shared.storage.room)
        verdict = Ending.MONTH_USED if self._life.stands_by else verdict
        digest = self._training.machine.state_digest  # empty: the state on disk was not rebuilt
        head = self._training.machine.head if digest else self._training.shared.storage.journal.head
        end = {"round": head.round, "head": head.digest.hex(), "digest": digest.hex()}
        self._box.events.emit("left", ending=verdict.value, **end)
        last = self._training.executor.stats.last
        loss = last.loss if last is not None and last.round == head.round else None
        self._say(lifecycle.ending_note(verdict, head.round, loss))
        return verdict

    # ---- commands of the control API, from any thread

    def info(self) -> Mapping[str, Any]:
        """Return the figures of `atom info`. Thread-safe."""
        text = self._training.text
        return {
            **self._status.info(),
            **self._reach.figures(self._training.machine.head),
            "traffic": self._traffic.traffic.to_json(),
            "text": text and text.figures(),
            "state_directory": str(self._box.state.root),
        }

    def pause(self) -> str:
        """Pause until `resume`, and return the outcome as text for the owner."""
        outcome = self._pauses.pause()
        self._change()
        return outcome

    def resume(self) -> str:
        """End the owner's pause, and return the outcome as text for the owner."""
        outcome = self._pauses.resume()
        self._change()
        return outcome

    def reload(self) -> Sequence[Mapping[str, Any]]:
        """Read the peer file again.

        Returns:
            One entry for each key that has changed: the `key`, and whether the change is `live`.

        Raises:
            UserError: something is refused, and nothing was changed.
        """
        changed = self._settings.reload()
        if changed:
            self._box.events.emit("reloaded", keys=[each["key"] for each in changed])
            self._change()
        return changed

    def leave(self, deadline_s: float | None) -> str:
        """Leave the run: wait until the counted work is committed, then end.

        Args:
            deadline_s: seconds after which the peer ends in any case; None: LEAVE_S, or the
                deadline of a leave that is under way.

        Returns:
            Text for the owner that names the seconds left.
        """
        self._life.stands_by = False  # the owner's request outranks the allowance as the reason
        return self._leave(deadline_s)

    def _leave(self, deadline_s: float | None) -> str:
        if self._life.leaves:
            return self._leave_sooner(deadline_s)
        seconds = lifecycle.LEAVE_S if deadline_s is None else deadline_s
        self._life.leave(seconds)
        needs_no_state = self._training.leave()
        self._pauses.end()
        if needs_no_state:
            self._say("the fetch is stopped; the received data is kept for the next start")
        self._box.events.emit("leaving", deadline_s=seconds)
        self._change()
        return f"leaving once the counted work is committed, in at most {seconds:.0f} s"

    def _leave_sooner(self, deadline_s: float | None) -> str:
        sooner, left_s = self._life.leave_sooner(deadline_s)
        if sooner:
            self._box.events.emit("leaving", deadline_s=deadline_s)
            self._change()
        return f"already leaving, {'now ' * sooner}in at most {left_s:.0f} s"
