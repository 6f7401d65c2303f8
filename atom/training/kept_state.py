"""What a peer does about the shared state around a round's step: whole, or in parts
(`docs/decisions/state-in-parts.md`)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Value, Voter
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.part_rows import LOADED, Row, rows_of, table_of
from atom.training.replica.parts_step import PartsStep
from atom.training.replica.replica import Replica
from atom.training.round.holders import Parts, mask_of, parts_in, still_held
from atom.training.storage.parts_results import PartsResults
from atom.training.storage.results import AnyResults
from atom.training.storage.run_storage import Snapshot

Arenas = Mapping[str, Tensor]


class KeptState(ABC):
    """Used where the replica is, while no step is under way."""

    room = 0
    """As in a promise."""

    @property
    @abstractmethod
    def holds(self) -> int:
        """As in a promise."""

    def work(self) -> PartsStep | None:
        """Of the next round's exchange, on its thread; None: all is whole. Raises: StepFailed."""
        return None

    @abstractmethod
    def ready(self, value: Value) -> None:
        """Before the step, whose result is among the results. Raises: MemoryError;
        PeerRefused(NOT_FOUND) where what was fetched without its value is not enough."""

    @abstractmethod
    def settled(self, value: Value) -> bytes:
        """After the step, before anybody hears of it, and before its result goes. The digest of
        the state. Raises: StepFailed."""

    @abstractmethod
    def digest(self) -> bytes:
        """Of the state that is here, as commits name it. Raises: StepFailed."""

    @abstractmethod
    def saved(self, digest: bytes) -> tuple[bytes, Arenas]:
        """What a snapshot of the state of that digest holds, live, and what that is named by."""

    @abstractmethod
    def load(self, snapshot: Snapshot, certified: bytes | None) -> None:
        """What `saved` gave. `certified`: the state's digest. Raises: StorageError."""

    @abstractmethod
    def begin(self) -> None:
        """This peer begins the run: it holds all that there is of the first state, which is about
        to be filled in. Raises: MemoryError."""


class WholeState(KeptState):
    """Everybody has all of it."""

    holds = 0

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def ready(self, value: Value) -> None: ...

    def settled(self, value: Value) -> bytes:
        return self.digest()

    def digest(self) -> bytes:
        return state_digest(self._replica.state_arenas())

    def saved(self, digest: bytes) -> tuple[bytes, Arenas]:
        return digest, self._replica.state_arenas()

    def load(self, snapshot: Snapshot, certified: bytes | None) -> None:
        self._replica.load_state(snapshot.checked(certified), snapshot.round)

    def begin(self) -> None: ...


class StateInParts(KeptState):
    """Everybody has what is loaded; of the rest the parts that it holds. After the first round the
    state's digest is that of the result that led to it, since this names the next state."""

    def __init__(self, replica: Replica, results: PartsResults, me: Voter) -> None:
        self._replica, self._results, self._me = replica, results, me
        self._held = replica.parts.held
        self.room = self._held.room

    @property
    def holds(self) -> int:
        return mask_of(self._held.held)

    def work(self) -> PartsStep:
        replica, results = self._replica, self._results
        return replica.parts.step(results.codec, replica.round + 1, results.keep_means)

    def ready(self, value: Value) -> None:
        """What began anew begins here; a part whose mean is nowhere is held no more."""
        result = self._results.of(value.result_digest)
        for part in parts_in(value.renewed) & result.means.keys():
            self._replica.parts.renew(part)
        self._drop(self._held.held - result.means.keys())
        if result.lacking(self._held.held):
            raise PeerRefused(Reason.NOT_FOUND, "a part's mean is here, and its weights are not")

    def settled(self, value: Value) -> bytes:
        """Takes what came whole; gives up what is not what the commit says, and what others are to
        hold, and do. Weights that are not give another digest."""
        result = self._results.of(value.result_digest)
        for part, arenas in result.held.items():
            self._held.take(part, arenas)
        self._results.rows = result.rows
        self._drop_damaged()
        holds = {m.peer_id: parts_in(m.holds) for m in value.contributions}
        holds[self._me.peer_id] = self._held.held
        told = {each.peer_id: parts_in(each.parts) for each in value.holders_next}
        self._drop(self._held.held - still_held(self._me.peer_id, told, holds))
        return self.digest()

    def digest(self) -> bytes:
        rows, arenas = self._results.rows, self._replica.state_arenas()
        named = (
            state_digest({LOADED: self._replica.parts.state(part)[0]}) == row.loaded
            for part, row in enumerate(rows)
        )
        return state_digest(table_of(rows) if rows and all(named) else arenas)

    def saved(self, digest: bytes) -> tuple[bytes, Arenas]:
        arenas = saved_in_parts(self._replica, self._results.rows)
        return state_digest(arenas), arenas

    def load(self, snapshot: Snapshot, certified: bytes | None) -> None:
        """The file's own digest is what there is to check it by: no other peer has the same."""
        arenas = snapshot.checked(None)
        held = dict[int, dict[str, Tensor]]()
        for name, arena in arenas.items():
            part, _, rest = name.partition(".")
            if part.isdecimal():
                held.setdefault(int(part), {})[rest] = arena
        self._drop(self._held.held)
        self._replica.load_state(arenas, snapshot.round)
        self._results.rows = rows_of(arenas)
        for number, each in held.items():
            self._held.take(number, each)

    def fetch(self, digest: bytes, ask: Callable[[bytes], Arenas]) -> None:
        """What `load_result` needs. Raises: PeerRefused; what `ask` does."""
        self._results.fetch_loaded(digest, ask)
        self._results.check(digest)

    def load_result(self, digest: bytes, round: int) -> None:
        """The state that a fetched result led to. What is held stays so if it is of that state."""
        result = self._results.of(digest)
        [name] = self._replica.state_arenas()
        self._results.rows = result.rows
        self._drop_damaged()  # before what is loaded becomes what held master weights say
        self._replica.load_state({name: result.all_loaded()}, round)

    def begin(self) -> None:
        self._replica.parts.hold_all()

    def _drop_damaged(self) -> None:
        rows = self._results.rows
        rest = {part: self._replica.parts.state(part)[1] for part in self._held.held}
        self._drop({part for part, each in rest.items() if state_digest(each) != rows[part].held})

    def _drop(self, parts: Parts) -> None:
        for part in parts:
            self._held.drop(part)


def saved_in_parts(replica: Replica, rows: tuple[Row, ...] = ()) -> Arenas:
    """What a snapshot holds of a state in parts, live. `rows`: of the table that led to it."""
    of_part = {part: replica.parts.held.of(part) for part in replica.parts.held.held}
    held = {f"{part}.{name}": a for part, each in of_part.items() for name, a in each.items()}
    return {**replica.state_arenas(), **table_of(rows), **held}


def kept_state(replica: Replica, results: AnyResults, me: Voter) -> KeptState:
    if isinstance(results, PartsResults):
        return StateInParts(replica, results, me)
    return WholeState(replica)
