"""Who is fresh, silent or dead, after stories of readings."""

import pytest
from swarm_samples import a_lease

from atom.swarm.chain.commit import Voter
from atom.swarm.records import lease as lease_book
from atom.swarm.records.lease import Lease, LeaseBook, PeerState, TwinWatch

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
        ("a1 a2 zzz", "", {"a": 0}, ""),  # we slept: all is unknown, and timers begin anew
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
    assert book.fresh(now + 4.5) == {}, "who does not look knows nothing"


def test_a_voter_never_seen_is_missing_only_from_when_it_was_asked_for() -> None:
    book = LeaseBook()
    for now in range(0, 100, 2):
        book.update({}, now)
    assert book.missing_for(voter("a"), 98.0) == 0.0
    for now in range(100, 112, 2):
        book.update({}, now)
    assert book.missing_for(voter("a"), 110.0) == 12.0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By who is read: a crowd that comes anew with each reading costs nobody else the sight."""
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
    for number in range(1000):
        book.missing_for(voter("a", f"{number}"), 114.0)
    assert len(book._asked_at) <= lease_book.MAX_ASKED


def test_a_process_that_goes_on_under_our_name_is_seen() -> None:
    watch = TwinWatch()
    seen = [watch.sees(lease(f"t{serial}", "us"), ME) for serial in (7, 7, 8, 8, 9)]
    assert seen == [False, False, False, False, True]


def test_our_own_leases_and_those_of_our_earlier_lives_are_no_twin() -> None:
    """The last words of a process that was killed come out of order."""
    watch = TwinWatch()
    for word in ("o40", "o41", "o40", "o41", *(f"m{n}" for n in range(9)), "p90", "p91"):
        assert not watch.sees(lease(word, "us"), ME)
    assert not watch.sees(None, ME)
