"""Peers that are fresh, silent or dead after sequences of readings."""

import itertools
from dataclasses import replace

import pytest

from atom.swarm.chain.commit import Ballot, Branch, Head, MemberCount, Value, Voter, genesis, rank
from atom.swarm.records import lease as lease_book
from atom.swarm.records.lease import (
    SHOWN,
    Lease,
    LeaseBook,
    PeerState,
    TwinWatch,
    claims_better,
    has_left,
    preferred,
)
from tests.swarm.swarm_samples import a_lease

ME = Voter("us", b"m" * 16)


def voter(incarnation: str, peer: str = "a") -> Voter:
    return Voter(peer, incarnation.encode() * 16)


def lease(word: str, peer: str = "a") -> Lease:
    """ "b7": serial 7 of incarnation b; "b7.": it is the last. No other field is to be believed."""
    incarnation, serial = word[0], int(word[1:].rstrip("."))
    state = PeerState.LEFT if word.endswith(".") else PeerState.ACCUMULATING
    issued_at = 9e9 * (serial % 2)
    whose = voter(incarnation, peer)
    return a_lease(
        peer, incarnation=whose.incarnation, serial=serial, state=state, issued_at=issued_at
    )


@pytest.mark.parametrize(
    ("story", "fresh", "silent", "dead"),
    [
        ("", "", {"a": 0}, ""),
        ("a1 a2 a3 a4", "a4", {"a": 0}, ""),
        ("a1 a4 a4 a4 a4 a4", "a4", {"a": 8}, ""),  # frozen: it lapses after eight seconds
        ("a1 a4 a4 a4 a4 a4 a4", "", {"a": 10}, ""),
        ("a1 - - -", "a1", {"a": 6}, ""),  # the record has vanished
        ("a7 a3 a7", "a7", {"a": 4}, ""),  # older serials are replays
        ("a8 a9 b1 b2", "b2", {"a": 4, "b": 0}, "a"),  # a restart
        ("a9 b1 a9 a8", "b1", {"a": 6, "b": 4}, "a"),  # records of the life before
        ("b1 a9 b2 b3", "b3", {"a": 4, "b": 0}, "a"),
        ("a1 b1 a2 b2 a3", "", {"a": 6, "b": 6}, ""),  # a clone: silent since there are two
        ("a1 b1 a2 b2 a3 a4 a5 a6 a7 a8", "a8", {"a": 0, "b": 12}, "b"),
        ("a1 a2.", "", {"a": 0}, "a"),  # a goodbye is final
        ("a1 a2. a3", "", {"a": 2}, "a"),
        ("a1 a2. a3 b1", "b1", {"b": 0}, "a"),
        ("a1 b1 b2.", "", {}, "ab"),
        ("a1 a2 z a2", "a2", {"a": 4}, ""),  # one reading failed
        ("a1 a2 zzz", "", {"a": 0}, ""),  # we slept: all is unknown, and all timers start over
        ("a1 a2 zzz a2", "", {"a": 0}, ""),
        ("a1 a2 zzz a2 a2", "", {"a": 2}, ""),
        ("a1 a2 zzz a2 a3", "a3", {"a": 0}, ""),
        ("a1 b1 a2 b2 zzz a3 b3", "", {"a": 2, "b": 2}, ""),
        ("a1 b1 b2 zzz b2", "", {"a": 0, "b": 0}, ""),
    ],
)
def test_what_a_story_of_readings_shows(
    story: str, fresh: str, silent: dict[str, int], dead: str
) -> None:
    book, now = LeaseBook(), 0.0
    for word in ("zzz", *story.split()):
        now += 20.0 if word == "zzz" else 2.0
        if "z" not in word:
            book.update({} if word == "-" else {"a": lease(word)}, now)
        missing = {each: book.missing_for(voter(each), now) for each in silent}
    assert missing == silent
    assert book.fresh(now) == ({"a": lease(fresh)} if fresh else {})
    met = sorted(set("ab") & set(story))
    assert [each for each in met if book.is_dead(voter(each), now)] == list(dead)
    assert not book.is_dead(voter("a", "somebody else"), now)
    assert book.fresh(now + 4.5) == {}, "a peer that does not read knows nothing"


def test_a_voter_never_seen_is_missing_only_from_when_it_was_asked_for() -> None:
    book = LeaseBook()
    for now in range(0, 100, 2):
        book.update({}, now)
    assert book.missing_for(voter("a"), 98.0) == 0.0
    for now in range(100, 112, 2):
        book.update({}, now)
    assert book.missing_for(voter("a"), 110.0) == 12.0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peers of the last readings are kept: a new crowd in each reading hides no other peer."""
    monkeypatch.setattr(lease_book, "MAX_PEERS", 60)
    book = LeaseBook()
    for number in range(10):
        crowd = [f"{number} {stranger}" for stranger in range(29)]
        book.update({peer: lease(f"a{1 + number // 4}", peer) for peer in ("a", *crowd)}, number)
        assert "a" in book.fresh(number)
        assert len(book.fresh(number)) <= 60
    assert book.missing_for(voter("a"), 9) == 1.0, "its last news are remembered"
    for number in range(40):
        book.update({"n": lease(f"{chr(65 + number)}1", "n")}, 75.0 + number)
    assert book.fresh(114.0)["n"] == lease("h1", "n")
    assert len(book._peers["n"]) <= lease_book.MAX_INCARNATIONS


def test_a_process_that_goes_on_under_our_name_is_seen() -> None:
    watch = TwinWatch()
    seen = [watch.sees(lease(f"t{serial}", "us"), ME) for serial in (7, 7, 8, 8, 9)]
    assert seen == [False, False, False, False, True]


def test_our_own_leases_and_those_of_our_earlier_lives_are_no_twin() -> None:
    """The last leases of a killed process arrive out of order."""
    watch = TwinWatch()
    for word in ("o40", "o41", "o40", "o41", *(f"m{n}" for n in range(9)), "p90", "p91"):
        assert not watch.sees(lease(word, "us"), ME)
    assert not watch.sees(None, ME)


# ---- a chain that a quorum vouches for is preferred, however many sequences another one has


PEERS = tuple(Voter(name * 8, name.encode() * 16) for name in "abcde")
START = replace(genesis(b"m" * 32, b"s" * 32, PEERS[0]), voters=PEERS)


def grown(head: Head, sequences: int = 8, survivors: tuple[Voter, ...] = ()) -> Head:
    """One round further; its result is named after the count, so that rivals differ."""
    part = MemberCount(PEERS[0].peer_id, PEERS[0].incarnation, sequences, 1.0)
    ballot = Ballot(1, PEERS[0].peer_id, PEERS[0].incarnation)
    digest = sequences.to_bytes(32)
    voters = survivors or head.voters
    value = Value(
        head.digest, head.round + 1, ballot, digest, 1.0, b"s" * 32, (part,), voters, survivors
    )
    return head.after(value)


def lease_at(head: Head) -> Lease:
    newest, before = head.branches[-SHOWN:], len(head.branches[:-SHOWN])
    return a_lease(head=head.digest, round=head.round, branches=newest, branches_before=before)


QUORUM = grown(START)
BRANCH_OF_TWO = grown(START, 10, PEERS[:2])
BRANCH_OF_ONE = grown(START, 10**9, PEERS[4:])
STRANGERS = grown(START, 10**9, (Voter("x", b"x" * 16),))


LOW, HIGH = b"a" * 8, b"b" * 8
ALONE, BACKED = Branch(5, 1, LOW), Branch(5, 2, HIGH)
BEST_FIRST = [
    rank(b"x" * 32, 9, (Branch(9, 0, HIGH),)),  # quorums up to round 8
    rank(b"x" * 32, 7, ()),
    rank(b"y" * 32, 7, ()),  # the lower name
    rank(b"x" * 32, 6, (BACKED, Branch(6, 1, LOW))),
    rank(b"x" * 32, 5, (BACKED,)),
    rank(b"x" * 32, 99, (ALONE,)),
    rank(b"x" * 32, 99, (ALONE, Branch(7, 9, LOW))),  # a quorum decided until 98 there
    rank(b"x" * 32, 99, (Branch(5, 1, HIGH),)),
    rank(b"x" * 32, 4, ()),  # which all of these continue
]


def test_heads_are_ordered_by_where_their_chains_part() -> None:
    for better, worse in itertools.combinations(BEST_FIRST, 2):
        assert better > worse
    assert not QUORUM.prefers(QUORUM)


def test_a_branch_counts_its_parent_s_voters_in_whatever_incarnation() -> None:
    assert [branch.backing for branch in BRANCH_OF_TWO.branches] == [2]
    restarted = tuple(Voter(voter.peer_id, b"n" * 16) for voter in PEERS[:3])
    head = grown(START, 9, restarted)
    assert head.branches == (Branch(1, 3, head.digest[:8]),)
    assert [branch.backing for branch in STRANGERS.branches] == [0]


@pytest.mark.parametrize("old", [0, 3, SHOWN + 4])
def test_a_lease_says_enough_however_many_branches_there_were(old: int) -> None:
    trunk = START
    for number in range(old):
        trunk = grown(trunk, number + 1, PEERS)
        trunk = replace(trunk, voters=PEERS)
    rivals = [grown(trunk), grown(trunk, 10, PEERS[:2]), grown(trunk, 11, PEERS[4:]), trunk]
    for ours, theirs in itertools.permutations(rivals, 2):
        assert claims_better(lease_at(theirs), ours) == theirs.prefers(ours)
    claims = [lease_at(head) for head in reversed(rivals)]
    assert [each.head for each in preferred(claims, rivals[0])] == [h.digest for h in rivals]


@pytest.mark.parametrize(
    ("theirs", "ours", "gone"),
    [
        (BRANCH_OF_TWO, START, True),
        (grown(grown(BRANCH_OF_TWO)), START, True),
        (grown(BRANCH_OF_TWO, 9, PEERS[:1]), BRANCH_OF_TWO, True),
        (QUORUM, START, False),
        (grown(QUORUM, 9, PEERS[:2]), START, False),
        (grown(BRANCH_OF_ONE, 9, PEERS[:1]), BRANCH_OF_TWO, False),
        (START, BRANCH_OF_TWO, False),
        (BRANCH_OF_TWO, BRANCH_OF_TWO, False),
    ],
)
def test_who_left_our_head_by_a_branch_has_left_it(theirs: Head, ours: Head, gone: bool) -> None:
    assert has_left(lease_at(theirs), ours) == gone


def test_who_tells_of_so_many_branches_that_ours_have_no_room_has_left_too() -> None:
    far = START
    for number in range(SHOWN + 1):
        far = replace(grown(far, number + 1, PEERS), voters=PEERS)
    assert has_left(lease_at(far), START)
