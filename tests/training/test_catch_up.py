"""From disk or from strangers: always the very state the chain names, never what a liar says."""

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atom.base.clock import BootClock, ManualClock
from atom.base.errors import PeerRefused, StorageError
from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.graph.ir import Program
from atom.graph.program import compile_program
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.clipping import gradient_norm
from atom.optim.rate import RateSettings
from atom.swap.device import CpuDevice
from atom.swarm.arenas import arena_digest, state_digest
from atom.swarm.blobs import BlobServer, BlobShelf
from atom.swarm.chain import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Contribution,
    Head,
    Value,
    Vote,
    Voter,
    genesis,
    vote_payload,
)
from atom.swarm.chain_check import double_vote
from atom.swarm.identity import Identity
from atom.swarm.local_transport import LocalNetwork, LocalTransport
from atom.swarm.manifest import Manifest
from atom.swarm.membership import signed_by
from atom.swarm.message_codec import encode
from atom.swarm.messages import CommitNotice
from atom.swarm.state_transfer import Watch
from atom.training.catch_up import CatchUpFailed, FirstState, Replay
from atom.training.disk_room import DiskRoom
from atom.training.donors import Arenas, Donors, Offer, PeerDonors, parse_offers
from atom.training.journal import Journal
from atom.training.keeper import Keeper
from atom.training.replica import Replica, ReplicaSettings
from atom.training.results import Results
from atom.training.shelf import MAX_OFFERS, Shelf
from atom.training.snapshot import list_snapshots, write_snapshot

ROUNDS = 5
MODEL = GPT3Config(1, 2, 16, sequence_tokens=8, vocabulary_size=29, dropout=0.0)
IDENTITIES = [Identity.create() for _ in range(3)]
VOTERS = tuple(sorted(Voter(identity.peer_id, b"i" * 16) for identity in IDENTITIES))
SIGNERS = {identity.peer_id: identity for identity in IDENTITIES}
FOUNDER = VOTERS[0]
STRANGER = Identity.create()


# ---- a run: its commits, and what they name


@functools.cache
def program() -> Program:
    batch = {name: torch.zeros(2, 8, dtype=torch.int64) for name in ("tokens", "targets")}
    return compile_program(GPT3(MODEL), batch)


def new_replica() -> Replica:
    settings = ReplicaSettings(RateSettings(1e-2, 1e-3, 2, "cosine", 10))
    return Replica(program(), None, settings, CpuDevice(), ManualClock())


def initialise(replica: Replica) -> None:
    replica.initialise(functools.partial(initial_value, MODEL, seed=7))


def copied(replica: Replica) -> Arenas:
    return {name: arena.clone() for name, arena in replica.state_arenas().items()}


@dataclass
class Run:
    """Commits, heads (one more), states by round and results by digest."""

    heads: list[Head]
    commits: list[Commit] = field(default_factory=list)
    states: list[Arenas] = field(default_factory=list)
    results: dict[bytes, Tensor] = field(default_factory=dict)

    def digest(self, round_number: int) -> bytes:
        return state_digest(self.states[round_number])

    def offer(self, round_number: int) -> Offer:
        return Offer(round_number, self.heads[round_number].digest)

    def chain(self, length: int = ROUNDS) -> bytes:
        return chain_bytes(self.commits[:length])


def chain_bytes(commits: Sequence[Commit]) -> bytes:
    raws = [encode(CommitNotice(commit)) for commit in commits]
    return b"".join(len(raw).to_bytes(4, "big") + raw for raw in raws)


def signed(
    head: Head, value: Value, forger: Identity | None = None, by: slice = slice(2)
) -> Commit:
    """A commit with the votes of a bare quorum: the founder alone at first, then two of three."""
    ballot = value.origin
    payload = vote_payload(head.digest, ballot, value.digest())
    votes = tuple(
        Vote(
            voter,
            (forger or SIGNERS[voter.peer_id]).sign(VOTE_DOMAIN, signed_by(voter, payload)),
        )
        for voter in head.voters[by]
    )
    return Commit(value, ballot, votes)


def value_on(head: Head, result: bytes, norm: float, state: bytes, sequences: int = 8) -> Value:
    return Value(
        parent=head.digest,
        round=head.round + 1,
        origin=Ballot(1, FOUNDER.peer_id, FOUNDER.incarnation),
        result_digest=result,
        gradient_norm=norm,
        parent_state_digest=state,
        contributions=(Contribution(FOUNDER.peer_id, FOUNDER.incarnation, sequences, 3.0),),
        voters_next=VOTERS,
    )


@functools.cache
def run() -> Run:
    replica = new_replica()
    initialise(replica)
    generator = torch.Generator().manual_seed(1)
    start = genesis(b"m" * 32, state_digest(replica.state_arenas()), FOUNDER)
    made = Run([start], states=[copied(replica)])
    for number in range(1, ROUNDS + 1):
        head = made.heads[-1]
        result = torch.randn(replica.gradients.numel(), generator=generator)
        name, norm = arena_digest(result), gradient_norm(result)
        commit = signed(head, value_on(head, name, norm, made.digest(number - 1)))
        replica.apply(result, norm, number)
        made.commits.append(commit)
        made.heads.append(head.after(commit.value))
        made.results[name] = result
        made.states.append(copied(replica))
    return made


# ---- who catches up, and from whom


class Served:
    """What one donor says. Everything may be replaced by a lie."""

    def __init__(self, offers: Sequence[int] = (), results: Sequence[int] = range(1, 6)) -> None:
        story = run()
        self.chain = story.chain()
        self.offers = [story.offer(number) for number in offers]
        self.states = {story.offer(number): story.states[number] for number in offers}
        names = [story.commits[number - 1].value.result_digest for number in results]
        self.results = {name: story.results[name] for name in names}


class FakeDonors:
    """Answers from the table; remembers which states were asked for and forgotten."""

    def __init__(self, table: dict[str, Served]) -> None:
        self.table = table
        self.asked: list[int] = []
        self.kept: set[int] = {-1}
        self.kept_when_asked: list[set[int]] = []
        self.here: dict[int, int] = {}
        self.full = False
        self.chain_bytes: list[int] = []

    def chain(self, peer_id: str, head: bytes, since: int) -> bytes:
        raw = self._of(peer_id).chain
        for _ in range(since):
            if not raw:
                raise PeerRefused(Reason.NOT_FOUND, "not that far")
            raw = raw[4 + int.from_bytes(raw[:4], "big") :]
        self.chain_bytes.append(len(raw))
        return raw

    def offers(self, peer_id: str) -> list[Offer]:
        return self._of(peer_id).offers

    def state(
        self, offer: Offer, peers: Sequence[str], digest: bytes | None, into: Arenas | None
    ) -> Arenas:
        if into is None and self.full:
            raise StorageError("no room for downloads", "free some disk space")
        self.asked.append(offer.round)
        self.kept_when_asked.append(self.kept)
        for peer in peers:
            if offer in self._of(peer).states:
                found = self._of(peer).states[offer]
                for name, arena in (into or {}).items():
                    arena.copy_(found[name])
                return into or found
        raise PeerRefused(Reason.NOT_FOUND, "state")

    def result(self, digest: bytes, peers: Sequence[str]) -> Tensor:
        for peer in peers:
            if peer in self.table and digest in self.table[peer].results:
                return self.table[peer].results[digest].clone()
        raise PeerRefused(Reason.NOT_FOUND, "result")

    def begun(self, offer: Offer) -> int:
        return self.here.get(offer.round, 0)

    def take_liars(self) -> set[str]:
        return set()

    def forget(self, but: Collection[Offer] = ()) -> None:
        self.kept = {offer.round for offer in but}

    def _of(self, peer_id: str) -> Served:
        if peer_id not in self.table:
            raise ConnectionError("gone")
        return self.table[peer_id]


class Peer:
    """A replica with its disk. `knows_start`: it can make the run's first state itself."""

    def __init__(self, folder: Path, knows_start: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.snapshots = folder / "snapshots"
        self.replica = new_replica()
        self.journal = Journal.open(folder / "chain.bin", run().heads[0])
        self.results = Results(folder / "results", self.replica.gradients.numel())
        self.events = EventList()
        room, shelf = DiskRoom(folder, self.events), Shelf(BlobShelf(), self.journal, self.results)
        self.keeper = Keeper(self.journal, self.results, shelf, self.snapshots, room)
        self.knows_start = knows_start
        self.replay = self.with_donors(FakeDonors({}))

    def with_donors(self, donors: Donors) -> Replay:
        first = FirstState(run().digest(0), self._first)
        self.replay = Replay(self.replica, self.keeper, donors, first, self.events)
        return self.replay

    def _first(self) -> bool:
        if self.knows_start:
            initialise(self.replica)
        return self.knows_start

    def store(self, journal: int, results: Sequence[int], snapshots: Sequence[int] = ()) -> None:
        """Puts on this peer's disk what such a history would have left there."""
        story = run()
        for commit in story.commits[:journal]:
            self.journal.append(commit)
        for number in results:
            name = story.commits[number - 1].value.result_digest
            self.results.hold(name, story.results[name].clone())
            self.results.save(name)
        self.results.release()
        for number in snapshots:
            write_snapshot(
                self.snapshots, number, story.heads[number].digest, story.digest(number),
                story.states[number],
            )  # fmt: skip

    def at(self, round_number: int) -> bool:
        """Whether journal, file and state are all at that round."""
        story = run()
        again = Journal.open(self.folder / "chain.bin", story.heads[0])
        return (
            self.replay.usable
            and self.replica.round == round_number
            and self.journal.head == again.head == story.heads[round_number]
            and state_digest(self.replica.state_arenas()) == story.digest(round_number)
        )


Make = Callable[..., Peer]


@pytest.fixture
def peer_of(tmp_path: Path) -> Make:
    made: list[Peer] = []

    def make(knows_start: bool = True, at: int | None = None) -> Peer:
        peer = Peer(tmp_path / str(len(made)), knows_start)
        made.append(peer)
        if at is not None:
            peer.store(at, range(1, at + 1))
            peer.replay.restore()
            assert peer.at(at)
        return peer

    return make


def heads(*peers: str) -> dict[str, bytes]:
    return {peer: run().heads[-1].digest for peer in peers}


# ---- from our own disk


def test_a_snapshot_and_the_results_since_restore_the_state(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    peer.store(ROUNDS, [4, 5], snapshots=[1, 3])
    peer.replay.restore()
    assert peer.at(ROUNDS)


def test_without_a_snapshot_it_begins_at_the_first_state(peer_of: Make) -> None:
    assert peer_of(at=ROUNDS).at(ROUNDS)


def test_a_missing_result_cuts_the_journal_there(peer_of: Make) -> None:
    peer = peer_of()
    peer.store(ROUNDS, [3, 5], snapshots=[2])
    peer.replay.restore()
    assert peer.at(3)


def test_a_damaged_snapshot_falls_back_to_the_one_before(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    peer.store(ROUNDS, range(2, 6), snapshots=[1, 4])
    newest = list_snapshots(peer.snapshots)[0].path
    raw = bytearray(newest.read_bytes())
    raw[-5] ^= 0x40
    newest.write_bytes(bytes(raw))
    peer.replay.restore()
    assert peer.at(ROUNDS)
    assert peer.events.events == [{"event": "snapshot-damaged", "path": newest.name}]


def test_a_snapshot_of_another_branch_does_not_count(peer_of: Make) -> None:
    peer = peer_of()
    peer.store(2, [1, 2])
    write_snapshot(peer.snapshots, 2, b"x" * 32, run().digest(3), run().states[3])
    peer.replay.restore()
    assert peer.at(2)


def test_a_state_that_the_next_commit_contradicts_does_not_count(peer_of: Make) -> None:
    peer = peer_of()
    peer.store(ROUNDS, range(1, 6))
    wrong = run().states[2]
    write_snapshot(peer.snapshots, 4, run().heads[4].digest, state_digest(wrong), wrong)
    peer.replay.restore()
    assert peer.at(ROUNDS)


def test_nothing_at_hand_is_not_usable(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    peer.store(3, [1, 2, 3])
    peer.replay.restore()
    assert not peer.replay.usable
    assert peer.journal.head == run().heads[0]
    with pytest.raises(CatchUpFailed, match="no donors"):
        peer.replay.run({}, discard=False)


# ---- from others


def test_follows_from_its_own_head_by_results(peer_of: Make) -> None:
    peer = peer_of(at=2)
    donors = FakeDonors({"a": Served(offers=[4], results=[3, 4, 5])})
    peer.with_donors(donors).usable = True
    peer.replay.run(heads("a"), discard=False)
    assert peer.at(ROUNDS)
    assert donors.asked == [], "no state was needed"
    assert len(peer.results.stored()) == ROUNDS


def test_falls_back_to_a_snapshot_where_results_are_gone(peer_of: Make) -> None:
    peer = peer_of(at=1)
    donors = FakeDonors({"a": Served(offers=[3], results=[2, 4, 5])})
    peer.with_donors(donors).usable = True
    peer.replay.run(heads("a"), discard=False)
    assert peer.at(ROUNDS)
    assert donors.asked == [3]
    assert donors.kept == set(), "downloads are gone"


def test_a_joiner_prefers_a_state_that_a_commit_vouches_for(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    donors = FakeDonors({"a": Served(offers=[5, 3]), "b": Served(offers=[1])})
    peer.with_donors(donors).run(heads("a", "b"), discard=False)
    assert peer.at(ROUNDS)
    assert donors.asked == [3]


def test_the_newest_state_will_do_if_there_is_no_other(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    peer.with_donors(FakeDonors({"a": Served(offers=[5], results=[])}))
    peer.replay.run(heads("a"), discard=False)
    assert peer.at(ROUNDS)


def test_a_first_state_that_is_not_the_manifest_s_is_not_taken(peer_of: Make) -> None:
    """At round 0 no commit names the state; whoever cannot make it would begin with a lie."""
    peer, liar, honest = peer_of(knows_start=False), Served(offers=[0]), Served(offers=[0])
    start = {donor: run().heads[0].digest for donor in ("a", "b")}
    liar.chain = honest.chain = b"there is none, and nobody is asked for it"
    liar.states = {run().offer(0): run().states[1]}
    peer.replay.restore()
    peer.with_donors(FakeDonors({"a": liar}))
    with pytest.raises(CatchUpFailed) as caught:
        peer.replay.run({"a": start["a"]}, discard=True)
    assert caught.value.shunned == ("a",)
    assert not peer.replay.usable
    peer.with_donors(FakeDonors({"b": honest}))
    peer.replay.run({"b": start["b"]}, discard=True)
    assert peer.at(0)


def test_a_state_not_to_be_trusted_is_replaced(peer_of: Make) -> None:
    peer = peer_of(at=ROUNDS)
    peer.replica.state_arenas()["master"][3] += 1
    peer.with_donors(FakeDonors({"a": Served(offers=[4])})).usable = True
    peer.replay.run(heads("a"), discard=True)
    assert peer.at(ROUNDS)


def test_nothing_better_changes_nothing(peer_of: Make) -> None:
    peer = peer_of(at=ROUNDS)
    peer.with_donors(FakeDonors({"a": Served(offers=[4])})).usable = True
    with pytest.raises(CatchUpFailed, match="nothing better") as failed:
        peer.replay.run(heads("a"), discard=False)
    assert failed.value.shunned == ()
    assert peer.at(ROUNDS)


def test_a_catch_up_in_vain_leaves_what_was_averaged_here(peer_of: Make) -> None:
    """Perhaps we voted for it, and nobody else has it any more."""
    peer = peer_of(at=1)
    peer.with_donors(FakeDonors({})).usable = True
    digest, result = b"r" * 32, torch.ones(peer.replica.gradients.numel())
    peer.results.hold(digest, result)
    with pytest.raises(CatchUpFailed):
        peer.replay.run(heads("a"), discard=False)
    assert torch.equal(peer.replay.fetch_result(digest, []), result)


def test_whoever_cannot_be_reached_is_not_a_liar(peer_of: Make) -> None:
    peer = peer_of(at=1)
    peer.with_donors(FakeDonors({"b": Served()})).usable = True
    with pytest.raises(CatchUpFailed, match="gone") as failed:
        peer.replay.run(heads("a"), discard=False)
    assert failed.value.shunned == ()
    peer.replay.run(heads("a", "b"), discard=False)
    assert peer.at(ROUNDS)


def test_whoever_says_nothing_is_asked_once(peer_of: Make) -> None:
    """To ask for all of the chain who was silent about its newest part is to wait twice."""
    asked: list[int] = []

    class Silent(FakeDonors):
        def chain(self, peer_id: str, head: bytes, since: int) -> bytes:
            asked.append(since)
            raise PeerRefused(Reason.TIMEOUT, "no byte for too long")

    peer = peer_of(at=2)
    with pytest.raises(CatchUpFailed, match="timeout"):
        peer.with_donors(Silent({})).run(heads("silent"), discard=False)
    assert asked == [2]


def test_without_the_results_since_the_snapshot_it_stays_whole(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    peer.with_donors(FakeDonors({"a": Served(offers=[2], results=[3])}))
    with pytest.raises(CatchUpFailed, match="results since"):
        peer.replay.run(heads("a"), discard=False)
    assert peer.at(3), "what was proven is kept"


def test_a_long_absence_takes_a_snapshot_at_once(peer_of: Make) -> None:
    peer = peer_of(at=0)
    donors = FakeDonors({"a": Served(offers=[1, 4])})
    peer.with_donors(donors).usable = True
    peer.replay.run(heads("a"), discard=False)
    assert peer.at(ROUNDS)
    assert donors.asked == [4], "a state and one result are less than five results"


def test_a_half_fetched_state_is_finished_if_that_is_less(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    donors = FakeDonors({"a": Served(offers=[3, 4])})
    donors.here[3] = 4 * 2 * peer.results.buffer().numel()
    peer.with_donors(donors).run(heads("a"), discard=False)
    assert peer.at(ROUNDS)
    assert donors.asked == [3]


def test_a_fetch_that_breaks_off_keeps_what_it_has_while_another_state_is_tried(
    peer_of: Make,
) -> None:
    """What broke it off, an outage or the owner, may break off the next one as well."""

    class BreakingOff(FakeDonors):
        def state(
            self, offer: Offer, peers: Sequence[str], digest: bytes | None, into: Arenas | None
        ) -> Arenas:
            try:
                return super().state(offer, peers, digest, into)
            except PeerRefused:
                self.here[offer.round] = 4096
                raise

    peer, served = peer_of(knows_start=False), Served(offers=[2, 3, 4])
    served.states = {run().offer(2): served.states[run().offer(2)]}
    donors = BreakingOff({"a": served})
    peer.with_donors(donors).run(heads("a"), discard=False)
    assert donors.asked == [4, 3, 2]
    assert donors.kept_when_asked == [{4}, {4, 3}, {4, 2}]
    assert donors.kept == set(), "in the end there is a state"


def test_without_room_a_state_is_fetched_into_memory(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    donors = FakeDonors({"a": Served(offers=[4])})
    donors.full = True
    peer.with_donors(donors).run(heads("a"), discard=False)
    assert peer.at(ROUNDS)
    assert peer.events.events[1]["what"] == "downloads"


def test_what_was_committed_meanwhile_is_a_matter_of_results(peer_of: Make) -> None:
    """Each chase begins where the one before ended: the state is fetched once."""
    peer, story = peer_of(knows_start=False), run()
    donors = FakeDonors({"a": Served(offers=[1, 2])})
    peer.with_donors(donors)
    for reached in (3, 4, 5):
        donors.table["a"].chain = story.chain(reached)
        peer.replay.run({"a": story.heads[reached].digest}, discard=False)
        assert peer.at(reached)
    assert donors.asked == [2]


def test_a_chain_that_parts_from_ours_is_fetched_whole(peer_of: Make) -> None:
    """Ours is a branch."""
    peer, story = peer_of(), run()
    value = value_on(story.heads[2], b"r" * 32, 1.0, story.digest(2), sequences=1)
    branch = signed(story.heads[2], replace(value, survivors=VOTERS[:1]))
    for commit in (*story.commits[:2], replace(branch, survivors=VOTERS[:1])):
        peer.journal.append(commit)
    donors = FakeDonors({"a": Served(offers=[4])})
    peer.with_donors(donors).run(heads("a"), discard=False)
    assert peer.at(ROUNDS)
    assert donors.chain_bytes == [len(story.chain()) - len(story.chain(3)), len(story.chain())]


def test_an_own_state_is_not_given_up_for_nothing(peer_of: Make) -> None:
    peer = peer_of(at=3)
    peer.with_donors(FakeDonors({"a": Served(results=[])})).usable = True
    with pytest.raises(CatchUpFailed, match="neither the results"):
        peer.replay.run(heads("a"), discard=False)
    assert peer.at(3)


# ---- liars


def forged(served: Served) -> None:
    story = run()
    commit = signed(story.heads[4], story.commits[4].value, forger=STRANGER)
    served.chain = chain_bytes([*story.commits[:4], commit])


def minority(served: Served) -> None:
    story = run()
    last = story.commits[4]
    commit = Commit(last.value, last.ballot, last.votes[:1])
    served.chain = chain_bytes([*story.commits[:4], commit])


def shorter(served: Served) -> None:
    served.chain = run().chain(3)


def torn_off(served: Served) -> None:
    served.chain = served.chain[:-3]


def not_a_chain(served: Served) -> None:
    served.chain = (12).to_bytes(4, "big") + b"no commit..."


def endless_record(served: Served) -> None:
    served.chain = b"\xff" * 64


def wrong_state(served: Served) -> None:
    served.offers = [run().offer(3)]
    served.states = {run().offer(3): run().states[2]}


def wrong_shape(served: Served) -> None:
    served.offers = [run().offer(5)]
    served.states = {run().offer(5): {name: torch.zeros(4) for name in run().states[0]}}


def arena_missing(served: Served) -> None:
    served.offers = [run().offer(5)]
    served.states = {run().offer(5): {"master": run().states[5]["master"]}}


LIES = [
    forged, minority, shorter, torn_off, not_a_chain, endless_record, wrong_state, wrong_shape,
    arena_missing,
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_liar_is_shunned(peer_of: Make, lie: Callable[[Served], None]) -> None:
    peer, liar = peer_of(knows_start=False), Served()
    lie(liar)
    with pytest.raises(CatchUpFailed) as failed:
        peer.with_donors(FakeDonors({"liar": liar})).run(heads("liar"), discard=False)
    assert failed.value.shunned == ("liar",)
    assert not peer.replay.usable
    assert peer.journal.head == run().heads[0]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_liar_does_not_keep_us_from_the_next_donor(
    peer_of: Make, lie: Callable[[Served], None]
) -> None:
    peer, liar = peer_of(knows_start=False), Served()
    lie(liar)
    table = {"liar": liar, "honest": Served(offers=[2])}
    peer.with_donors(FakeDonors(table)).run(heads("liar", "honest"), discard=False)
    assert peer.at(ROUNDS)


@pytest.mark.parametrize("lie", [None, wrong_state], ids=["nothing", "another state"])
def test_a_newer_offer_that_does_not_hold_gives_way_to_an_older_one(
    peer_of: Make, lie: Callable[[Served], None] | None
) -> None:
    peer, liar = peer_of(knows_start=False), Served(offers=[3])
    if lie is None:
        liar.states = {}
    else:
        lie(liar)
    donors = FakeDonors({"honest": Served(offers=[2]), "liar": liar})
    peer.with_donors(donors).run(heads("honest", "liar"), discard=False)
    assert peer.at(ROUNDS)
    assert donors.asked == [3, 2], "the newest that a commit vouches for comes first"


def test_offers_beside_the_chain_are_ignored(peer_of: Make) -> None:
    peer, liar = peer_of(knows_start=False), Served(offers=[2])
    head = run().heads[1].digest
    liar.offers += [Offer(-1, run().heads[-1].digest), Offer(2**62, head), Offer(4, head)]
    donors = FakeDonors({"liar": liar})
    peer.with_donors(donors).run(heads("liar"), discard=False)
    assert donors.asked == [2]


def test_a_heavier_chain_of_other_voters_does_not_hold(peer_of: Make) -> None:
    peer, liar = peer_of(at=2), Served()
    start = run().heads[0]
    value = value_on(start, b"r" * 32, 1.0, run().digest(0), sequences=10_000)
    liar.chain = chain_bytes([signed(start, value, forger=STRANGER)])
    peer.with_donors(FakeDonors({"liar": liar})).usable = True
    with pytest.raises(CatchUpFailed) as failed:
        peer.replay.run({"liar": start.after(value).digest}, discard=False)
    assert failed.value.shunned == ("liar",)
    assert peer.at(2)


def test_who_signed_two_rounds_of_one_head_is_named_and_ours_stays(peer_of: Make) -> None:
    """The longer chain is preferred, but where they part the same two made both quorums."""
    peer, liar, head = peer_of(at=2), Served(), run().heads[1]
    commits = run().commits[:1]
    for number in range(1, 6):
        result = bytes([number]) * 32
        commits = [*commits, signed(head, value_on(head, result, 1.0, run().digest(number % 4)))]
        head = head.after(commits[-1].value)
    liar.chain = chain_bytes(commits)
    peer.with_donors(FakeDonors({"liar": liar})).usable = True
    with pytest.raises(CatchUpFailed):
        peer.replay.run({"liar": head.digest}, discard=False)
    assert peer.at(2)
    both = {voter.peer_id for voter in run().heads[1].voters[:2]}
    assert set(peer.replay.take_equivocal()) == both
    assert peer.replay.take_equivocal() == ()


def longer_rival(attempt: int, by: slice) -> list[Commit]:
    """Parts from the run's own chain after its first round, and goes on further."""
    head, commits = run().heads[1], run().commits[:1]
    for number in range(1, 6):
        value = value_on(head, run().commits[number % 3].value.result_digest, 1.0, b"s" * 32)
        value = replace(value, origin=replace(value.origin, attempt=attempt))
        commits = [*commits, signed(head, value, by=by)]
        head = head.after(value)
    return commits


def test_votes_at_two_ballots_prove_nothing() -> None:
    """A coordinator that keeps its first commit for itself, and ignores what the promises for its
    second ballot report, has honest voters sign both: they must not be put aside for that."""
    assert double_vote(run().commits, longer_rival(2, slice(2))) is None
    double = double_vote(run().commits, longer_rival(1, slice(2)))
    assert double is not None
    assert double.by == set(run().heads[1].voters[:2])


def test_two_that_one_liar_told_different_things_meet_again() -> None:
    """Each has signed with the liar alone, at one ballot. If each kept its own, no quorum of honest
    voters would ever stand at one head."""
    ours, theirs = run().commits, longer_rival(1, slice(1, 3))
    here, there = double_vote(ours, theirs), double_vote(theirs, ours)
    assert here is not None
    assert there is not None
    assert here.by == there.by == {run().heads[1].voters[1]}
    assert (here.is_ours, there.is_ours) == (False, False)


# ---- over a transport


class Street:
    """A joiner and donors that serve from their shelves."""

    def __init__(self, peer: Peer) -> None:
        self._network = LocalNetwork()
        self._transports: list[LocalTransport] = []
        self.peer = peer
        elements = peer.results.buffer().numel()
        state = {name: arena.dtype for name, arena in peer.replica.state_arenas().items()}
        folder = peer.folder / "downloads"
        watch = Watch(events=peer.events)
        self.donors = PeerDonors(self._add(None), elements, state, folder, watch)
        peer.with_donors(self.donors)

    def open_door(self, blobs: BlobShelf) -> str:
        return self._add(blobs).peer_id

    def _add(self, blobs: BlobShelf | None) -> LocalTransport:
        number = len(self._transports)
        transport = LocalTransport(
            self._network, Identity.create(), bytes([number]) * 16, EventList()
        )
        serve = BlobServer(blobs, BootClock()).serve if blobs is not None else None
        transport.set_handlers(on_blobs=serve)
        transport.start()
        self._transports.append(transport)
        return transport

    def close(self) -> None:
        self.donors.close()
        for transport in self._transports:
            transport.close()


@pytest.fixture
def street(peer_of: Make) -> Iterator[Street]:
    run()  # tracing starts threads of its own
    before = set(threading.enumerate())
    street = Street(peer_of(knows_start=False))
    yield street
    street.close()
    assert set(threading.enumerate()) <= before


def shelf_of(peer: Peer, snapshot: int = 3, into: BlobShelf | None = None) -> BlobShelf:
    """What a peer at the newest head with one snapshot offers."""
    peer.store(ROUNDS, [3, 4, 5], snapshots=[snapshot])
    blobs = into or BlobShelf()
    shelf = Shelf(blobs, peer.journal, peer.results)
    shelf.announce_chain()
    shelf.announce_snapshots(list_snapshots(peer.snapshots))
    return blobs


def test_a_joiner_gets_everything_from_a_shelf(street: Street, peer_of: Make) -> None:
    donor = street.open_door(shelf_of(peer_of()))
    street.peer.replay.run(heads(donor), discard=False)
    assert street.peer.at(ROUNDS)
    assert list((street.peer.folder / "downloads").iterdir()) == []


@pytest.mark.parametrize(("last_seen", "by"), [(2, "results"), (0, "snapshot")])
def test_who_returns_fetches_only_what_it_lacks(
    street: Street, peer_of: Make, last_seen: int, by: str
) -> None:
    """Three rounds missed are three results; five are more than a state and two results."""
    street.peer.store(last_seen, range(1, last_seen + 1), [last_seen])
    street.peer.replay.restore()
    donors = [street.open_door(shelf_of(peer_of(), snapshot=4)) for _ in range(2)]
    street.peer.replay.run(heads(*donors), discard=False)
    assert street.peer.at(ROUNDS)
    ways = [event for event in street.peer.events.events if event["event"] == "way-back"]
    fetched = [event for event in street.peer.events.events if event["event"] == "fetched"]
    result_bytes = street.peer.results.arena_bytes
    assert [way["by"] for way in ways] == [by]
    assert sum(event["bytes"] for event in fetched) == ways[0]["missing_bytes"]
    assert ways[0]["missing_bytes"] == (3 if by == "results" else 3 + 1) * result_bytes


def test_who_lies_beside_honest_donors_is_named(street: Street, peer_of: Make) -> None:
    lied = threading.Event()

    class Lying(BlobShelf):
        def chunk(self, name: str, arena: int, chunk: int) -> bytes | memoryview:
            truth = super().chunk(name, arena, chunk)
            if not name.startswith("state/"):
                return truth
            lied.set()
            return bytes(len(truth))

    class Late(BlobShelf):
        def chunk(self, name: str, arena: int, chunk: int) -> bytes | memoryview:
            assert not name.startswith("state/") or lied.wait(20.0)
            return super().chunk(name, arena, chunk)

    liar = street.open_door(shelf_of(peer_of(), into=Lying()))
    honest = street.open_door(shelf_of(peer_of(), into=Late()))
    shunned = street.peer.replay.run(heads(liar, honest), discard=False)
    assert street.peer.at(ROUNDS)
    assert shunned == (liar,)
    dropped = [e for e in street.peer.events.events if e["event"] == "donor-dropped"]
    assert {event["peer_id"] for event in dropped} == {liar}


def test_of_the_chain_only_what_is_new_is_fetched(street: Street, peer_of: Make) -> None:
    street.peer.store(3, [1, 2, 3], [3])
    street.peer.replay.restore()
    asked: list[str] = []
    blobs = shelf_of(peer_of())
    manifest = blobs.manifest

    def noted(name: str, tick: Callable[[], None] = lambda: None) -> Manifest:
        asked.append(name)
        return manifest(name, tick)

    blobs.manifest = noted  # type: ignore[method-assign]
    street.peer.replay.run(heads(street.open_door(blobs)), discard=False)
    assert street.peer.at(ROUNDS)
    end = run().heads[-1].digest.hex()
    assert [name for name in asked if name.startswith("chain/")] == [f"chain/{end}/3"]
    whole, news = (blobs.manifest(f"chain/{end}{since}") for since in ("", "/3"))
    assert news.byte_count < whole.byte_count / 2
    for odd in (f"chain/{end}/6", f"chain/{'0' * 64}/1", f"chain/{end}/-1", "chain/x/1"):
        with pytest.raises(PeerRefused):
            blobs.manifest(odd)


NOT_LISTS = [
    b'[[1e999,"00"]]',
    b"[" * 5000 + b"]" * 5000,
    b'[[-1,"' + b"00" * 32 + b'"]]',
    b'[[9223372036854775808,"' + b"00" * 32 + b'"]]',
    b'[[1,"00"]]',
    b'[[true,"' + b"00" * 32 + b'"]]',
    b"[[1,2]]",
    b"[1]",
    b"7",
    b"null",
    b'{"a":1}',
    b"[[1" + b"0" * 6000 + b',"00"]]',
    b"\xff\xfe\x00",
    b"",
    b"[" + b",".join([b'[1,"' + b"00" * 32 + b'"]'] * (MAX_OFFERS + 1)) + b"]",
]


@pytest.mark.parametrize("listed", NOT_LISTS, ids=range(len(NOT_LISTS)))
def test_a_list_out_of_bounds_is_malformed(listed: bytes) -> None:
    with pytest.raises(PeerRefused) as refused:
        parse_offers(listed)
    assert refused.value.reason is Reason.MALFORMED


def test_a_list_within_bounds_is_read() -> None:
    many = b",".join([b'[9223372036854775807,"' + b"ab" * 32 + b'"]'] * MAX_OFFERS)
    assert parse_offers(b"[" + many + b"]") == [Offer(2**63 - 1, b"\xab" * 32)] * MAX_OFFERS
    assert parse_offers(b"[]") == []


@pytest.mark.parametrize("listed", [NOT_LISTS[0], NOT_LISTS[1], b'[[0,""]]'])
def test_a_nonsensical_list_is_passed_over(street: Street, peer_of: Make, listed: bytes) -> None:
    odd = shelf_of(peer_of())
    odd.register("snapshots", listed)
    liar = street.open_door(odd)
    with pytest.raises(CatchUpFailed, match="no donor serves a state"):
        street.peer.replay.run(heads(liar), discard=False)
    honest = street.open_door(shelf_of(peer_of()))
    street.peer.replay.run(heads(liar, honest), discard=False)
    assert street.peer.at(ROUNDS)


@pytest.mark.parametrize("size", [16, 1 << 20])
def test_a_state_of_another_model_is_refused(street: Street, peer_of: Make, size: int) -> None:
    odd, head = shelf_of(peer_of()), run().heads[3].digest
    arenas = {name: torch.zeros(size) for name in run().states[0]}
    odd.register(f"state/{head.hex()}", arenas, head, 3)
    liar = street.open_door(odd)
    with pytest.raises(CatchUpFailed) as failed:
        street.peer.replay.run(heads(liar), discard=False)
    assert failed.value.shunned == (liar,)
    assert not street.peer.replay.usable


def test_a_result_under_another_arenas_name_is_refused(street: Street, peer_of: Make) -> None:
    name, result = next(iter(run().results.items()))
    odd = BlobShelf()
    odd.register(f"result/{name.hex()}", {"other": result})
    liar = street.open_door(odd)
    with pytest.raises(PeerRefused) as refused:
        street.donors.result(name, [liar])
    assert refused.value.reason is Reason.HASH_MISMATCH
    honest = peer_of()
    honest.store(1, [1])
    blobs = BlobShelf()
    Shelf(blobs, honest.journal, honest.results).announce_results()
    fetched = street.donors.result(name, [liar, street.open_door(blobs)])
    assert torch.equal(fetched, result)
