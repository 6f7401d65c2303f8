"""A simulated process that was asked to leave: it goes when a daemon would go."""

from typing import TYPE_CHECKING

from atom.daemon.peer.leaving import LEAVE_S
from atom.daemon.peer.lifecycle import Facts, ending
from atom.swarm.records.lease import claims_better
from atom.training.round.electorate import leaves_them_stuck
from atom.training.round.events import View

if TYPE_CHECKING:
    from simulated_peer import Process


class Goodbye:
    def __init__(self, process: "Process") -> None:
        self._process = process
        self._leave_by: float | None = None
        self._settled_at: float | None = None

    @property
    def asked(self) -> bool:
        return self._leave_by is not None

    def ask(self) -> None:
        self._leave_by = self._process.now() + LEAVE_S

    def is_over(self, view: View) -> bool:
        """Whether it goes now."""
        if self._leave_by is None:
            return False
        process, head = self._process, self._process.machine.head
        if self._settled_at is None and not process.sequences:
            self._settled_at = process.now()
        others = [lease for lease in view.fresh.values() if lease.head != head.digest]
        facts = Facts(
            phase=process.machine.phase,
            now=process.now(),
            leave_by=self._leave_by,
            sequences=process.sequences,
            settled_at=self._settled_at,
            laggards=sum(not claims_better(lease, head) for lease in others),
            others_stuck=leaves_them_stuck(head, process.me, view),
        )
        return ending(facts) is not None
