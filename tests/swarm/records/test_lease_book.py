import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swarm_samples import a_lease

from atom.swarm.chain.commit import Voter
from atom.swarm.records import lease_book
from atom.swarm.records.lease import PeerState
from atom.swarm.records.lease_book import LeaseBook

A1, A2, A3 = (bytes([number]) * 16 for number in (1, 2, 3))


def lease(serial, incarnation=A1, peer="a", **changes):
    return a_lease(peer, incarnation=incarnation, serial=serial, **changes)


def watched(book, readings, start=0.0, step=2.0):
    """Feeds one reading every `step` seconds; returns the time of the last."""
    now = start
    for number, leases in enumerate(readings):
        now = start + number * step
        book.update({each.peer_id: each for each in leases}, now)
    return now


def test_a_renewed_lease_is_fresh_and_a_frozen_one_lapses_after_eight_seconds():
    book = LeaseBook()
    now = watched(book, [[lease(serial)] for serial in range(1, 5)])
    assert set(book.fresh(now)) == {"a"}
    now = watched(book, [[lease(4)]] * 4, start=now + 2)
    assert set(book.fresh(now)) == {"a"}
    assert book.missing_for(Voter("a", A1), now) == 8.0
    now = watched(book, [[lease(4)]], start=now + 2)
    assert book.fresh(now) == {}
    assert book.missing_for(Voter("a", A1), now) == 10.0


def test_a_vanished_record_does_not_end_a_lease_early():
    book = LeaseBook()
    now = watched(book, [[lease(1)], [], [], []])
    assert set(book.fresh(now)) == {"a"}
    assert book.missing_for(Voter("a", A1), now) == 6.0


def test_the_publishers_clock_is_not_read():
    book = LeaseBook()
    now = watched(book, [[lease(1, issued_at=0.0)], [lease(2, issued_at=9e9)]])
    assert set(book.fresh(now)) == {"a"}


def test_an_older_serial_is_a_replay():
    book = LeaseBook()
    now = watched(
        book, [[lease(7, sequences=7)], [lease(3, sequences=3)], [lease(7, sequences=99)]]
    )
    assert book.fresh(now)["a"].sequences == 7
    assert book.missing_for(Voter("a", A1), now) == 4.0


def test_a_restart_replaces_the_old_incarnation_and_is_no_duplicate():
    book = LeaseBook()
    now = watched(book, [[lease(8)], [lease(9)], [lease(1, A2)], [lease(2, A2)]])
    assert book.fresh(now)["a"].incarnation == A2
    assert not book.is_duplicate("a", now)
    assert book.is_replaced(Voter("a", A1), now)
    assert not book.is_replaced(Voter("a", A2), now)
    assert book.missing_for(Voter("a", A1), now) == 4.0
    assert book.missing_for(Voter("a", A2), now) == 0.0


def test_an_old_record_of_the_previous_incarnation_does_not_displace_the_new_one():
    book = LeaseBook()
    now = watched(book, [[lease(9)], [lease(1, A2)], [lease(9)], [lease(8)]])
    assert book.fresh(now)["a"].incarnation == A2
    book = LeaseBook()  # the old record is the first we ever see of it, and then the last
    now = watched(book, [[lease(1, A2)], [lease(9)], [lease(2, A2)], [lease(3, A2)]])
    assert book.fresh(now)["a"].incarnation == A2


def test_two_living_incarnations_of_one_peer_are_doubled_and_neither_counts():
    book = LeaseBook()
    now = watched(book, [[lease(1)], [lease(1, A2)], [lease(2)], [lease(2, A2)], [lease(3)]])
    assert book.is_duplicate("a", now)
    assert book.fresh(now) == {}
    assert not book.is_replaced(Voter("a", A1), now)
    assert book.missing_for(Voter("a", A1), now) == 6.0, "since there are two"
    now = watched(book, [[lease(serial)] for serial in range(4, 10)], start=now + 2)
    assert not book.is_duplicate("a", now)
    assert book.fresh(now)["a"].incarnation == A1


def test_a_goodbye_ends_a_lease_at_once_and_for_good():
    book = LeaseBook()
    now = watched(book, [[lease(1)], [lease(2, state=PeerState.LEFT)]])
    assert book.fresh(now) == {}
    assert book.has_left(Voter("a", A1))
    assert not book.has_left(Voter("a", A2))
    assert not book.has_left(Voter("b", A1))
    now = watched(book, [[lease(3)], [lease(1, A2)]], start=now + 2)
    assert book.has_left(Voter("a", A1))
    assert book.fresh(now)["a"].incarnation == A2


def test_after_a_gap_of_our_own_everything_is_unknown_and_timers_start_again():
    book = LeaseBook()
    now = watched(book, [[lease(1)]] * 3)
    frozen_until = now + 20.0
    assert book.fresh(frozen_until) == {}
    assert book.missing_for(Voter("a", A1), frozen_until) == 0.0
    assert not book.is_watching(frozen_until)
    book.update({"a": lease(1)}, frozen_until)  # still the old record: no news of it
    assert book.fresh(frozen_until) == {}
    assert book.missing_for(Voter("a", A1), frozen_until) == 0.0
    book.update({"a": lease(1)}, frozen_until + 3)
    assert book.missing_for(Voter("a", A1), frozen_until + 3) == 3.0
    book.update({"a": lease(2)}, frozen_until + 5)
    assert set(book.fresh(frozen_until + 5)) == {"a"}


def test_before_the_first_reading_nothing_is_known():
    book = LeaseBook()
    assert book.fresh(5.0) == {}
    assert book.missing_for(Voter("a", A1), 5.0) == 0.0


def test_a_voter_never_seen_is_missing_only_from_when_it_was_asked_for():
    book = LeaseBook()
    now = watched(book, [[]] * 50)
    assert book.missing_for(Voter("new", A1), now) == 0.0
    now = watched(book, [[]] * 6, start=now + 2)
    assert book.missing_for(Voter("new", A1), now) == 12.0


def test_memory_is_bounded(monkeypatch):
    """By who is read: a crowd that comes anew with each reading costs nobody else the sight."""
    monkeypatch.setattr(lease_book, "MAX_PEERS", 60)
    book = LeaseBook()
    for number in range(10):
        crowd = [f"{number} {stranger}" for stranger in range(29)]
        book.update({peer: lease(1 + number // 4, peer=peer) for peer in ("a", *crowd)}, number)
        assert "a" in book.fresh(number)
        assert len(book.fresh(number)) <= 60
    assert book.missing_for(Voter("a", A1), 9) == 1.0, "its last news are remembered"
    incarnations = [bytes([n]) * 16 for n in range(40)]
    for number, incarnation in enumerate(incarnations):
        book.update({"n0": lease(1, incarnation, peer="n0")}, 75.0 + number)
    assert book.fresh(114.0)["n0"].incarnation == incarnations[-1]
    for number in range(1000):
        book.missing_for(Voter(str(number), A1), 114.0)
    assert len(book._asked_at) <= lease_book.MAX_ASKED


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.5, 1.0, 2.0, 3.5, 4.5, 9.0]),  # seconds since the last reading
        st.lists(
            st.tuples(st.sampled_from("ab"), st.sampled_from([A1, A2, A3]), st.integers(1, 6)),
            max_size=2,
            unique_by=lambda seen: seen[0],
        ),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=600, deadline=None)
@given(STEPS, st.floats(0, 20))
def test_whatever_is_read_the_promises_hold(steps, later):
    """Against a plain re-computation from the whole history of readings."""
    book, now, watch_start, last_reading = LeaseBook(), 100.0, 0.0, None
    highest, news = {}, {}
    for pause, seen in steps:
        now += pause
        if last_reading is None or now - last_reading > 4.0:
            watch_start, news = now, {}
        last_reading = now
        for peer, incarnation, serial in seen:
            if serial > highest.get((peer, incarnation), 0):
                highest[peer, incarnation] = serial
                news[peer, incarnation] = now
        book.update({p: lease(s, i, p) for p, i, s in seen}, now)

        fresh = book.fresh(now)
        for peer, current in fresh.items():
            assert current.serial == highest[peer, current.incarnation]
            assert now - news[peer, current.incarnation] <= 8.0
        for peer in "ab":
            signs = [t for (p, _), t in news.items() if p == peer and now - t <= 8.0]
            if not signs:
                assert peer not in fresh
            elif not book.is_duplicate(peer, now):
                assert news[peer, fresh[peer].incarnation] == max(signs)
            if len(signs) < 2:
                assert not book.is_duplicate(peer, now)
            for incarnation in (A1, A2, A3):
                silent = book.missing_for(Voter(peer, incarnation), now)
                assert 0.0 <= silent <= now - watch_start
                if (peer, incarnation) in news and not book.is_duplicate(peer, now):
                    assert silent == now - news[peer, incarnation]
    if later > 4.0:
        assert book.fresh(now + later) == {}
        assert book.missing_for(Voter("a", A1), now + later) == 0.0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(0.1, 3.9), min_size=1, max_size=40), st.integers(1, 3))
def test_a_peer_that_renews_is_never_taken_for_dead_and_a_dead_one_always_is(pauses, every):
    """Readings come at any pace we watch at; the living renews at least every third reading."""
    book, now, last_news, lived_until = LeaseBook(), 0.0, 0.0, None
    for number, pause in enumerate(pauses):
        now += pause
        if number % every == 0:
            last_news = now
        lived_until = now if lived_until is None else lived_until
        book.update({"a": lease(1 + number // every, peer="a"), "dead": lease(1, peer="dead")}, now)
        assert ("a" in book.fresh(now)) == (now - last_news <= 8.0)
        assert book.missing_for(Voter("dead", A1), now) == now - lived_until


@pytest.mark.parametrize("grace", [8.0, 12.0, 120.0])
def test_silence_is_measured_to_the_reading(grace):
    book = LeaseBook()
    book.update({"a": lease(1)}, 0.0)
    now = 0.0
    while book.missing_for(Voter("a", A1), now) < grace:
        now += 1.0
        book.update({}, now)
    assert now == grace
