"""How slow the next ring may be."""

from atom.swarm.stream.pace import FRACTION, REMEMBERED, SLOWEST_BYTES_PER_S, PaceBook

MEGA = 1e6


def test_the_first_ring_may_be_as_slow_as_any() -> None:
    assert PaceBook().pace().bytes_per_s == SLOWEST_BYTES_PER_S


def test_a_ring_is_measured_against_the_best_of_the_last() -> None:
    book = PaceBook()
    book.finished(int(100 * MEGA), 1.0)
    book.finished(int(100 * MEGA), 4.0)
    assert book.pace().bytes_per_s == 100 * MEGA / FRACTION
    for _ in range(REMEMBERED):
        book.finished(int(100 * MEGA), 4.0)
    assert book.pace().bytes_per_s == 25 * MEGA / FRACTION


def test_no_member_slows_the_rings_down_step_by_step() -> None:
    """Each ring just quick enough: after as many as are remembered, no slower than that."""
    book = PaceBook()
    book.finished(int(1000 * MEGA), 1.0)
    for _ in range(REMEMBERED - 1):
        book.finished(int(1000 * MEGA), 1000 * MEGA / book.pace().bytes_per_s)
    assert book.pace().bytes_per_s == 1000 * MEGA / FRACTION


def test_what_was_too_slow_for_all_is_quick_enough_in_the_end() -> None:
    book = PaceBook()
    book.finished(int(1000 * MEGA), 1.0)
    attempts = 0
    while book.pace().bytes_per_s > MEGA:
        book.too_slow()
        attempts += 1
    assert attempts == 6
    for _ in range(100):
        book.too_slow()
    assert book.pace().bytes_per_s == SLOWEST_BYTES_PER_S
    book.finished(int(MEGA), 1.0)
    assert book.pace().bytes_per_s == 1000 * MEGA / FRACTION


def test_the_line_rises_with_what_is_done() -> None:
    pace = PaceBook().pace()
    assert pace.due_s(0) == pace.slack_s
    assert pace.due_s(int(SLOWEST_BYTES_PER_S)) == pace.slack_s + 1.0
