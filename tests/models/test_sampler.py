from hypothesis import given, settings
from hypothesis import strategies as st

from atom.models.data.sampler import (
    GUEST_SLOTS,
    Permutation,
    Sampler,
    guest_position,
)

sizes = st.integers(1, 700)
seeds = st.integers(0, 2**63 - 1)


@given(size=sizes, seed=seeds)
@settings(max_examples=60, deadline=None)
def test_every_key_names_a_bijection(size: int, seed: int) -> None:
    order = Permutation.keyed(size, str(seed))
    assert sorted(map(order, range(size))) == list(range(size))


def test_orders_differ_between_keys_and_are_fixed_for_one() -> None:
    first, second = Permutation.keyed(1000, "a"), Permutation.keyed(1000, "b")
    agree = sum(first(i) == second(i) for i in range(1000))
    assert agree < 20
    # A change of the network would deal other samples to peers of another version.
    assert [first(i) for i in range(5)] == [254, 447, 272, 189, 325]


def test_huge_ranges_cost_no_memory() -> None:
    size = 10**15
    order = Permutation.keyed(size, "x")
    assert len({order(i) for i in range(1000)}) == 1000
    assert all(0 <= order(size - 1 - i) < size for i in range(1000))


@given(
    windows=st.integers(50, 400),
    rounds=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=8),
    seed=seeds,
)
@settings(max_examples=80, deadline=None)
def test_members_never_share_a_sample_within_an_epoch(
    windows: int, rounds: list[list[int]], seed: int
) -> None:
    sampler, cursor = Sampler(windows, seed), 0
    drawn = []
    for counts in rounds:
        names = [f"peer-{rank}" for rank in range(len(counts))]
        for name, count in zip(names, counts, strict=True):
            drawn += [sampler.draw_position(cursor, names, name, k) for k in range(count)]
        cursor += len(counts) * max(counts)
    assert len(set(drawn)) == len(drawn)
    seen = {(position // windows, sampler.window_at(position)) for position in drawn}
    assert len(seen) == len(drawn)


@given(members=st.integers(1, 5), per_member=st.integers(1, 6), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_an_epoch_of_full_rounds_covers_every_window(
    members: int, per_member: int, seed: int
) -> None:
    windows = members * per_member * 7
    sampler = Sampler(windows, seed)
    seen = [
        sampler.window_at(sampler.draw_position(cursor, range(members), rank, k))
        for cursor in range(0, windows, members * per_member)
        for rank in range(members)
        for k in range(per_member)
    ]
    assert sorted(seen) == list(range(windows))


@given(cursor=st.integers(0, 10**6), k=st.integers(0, 5000), windows=st.integers(1, 5000))
def test_guests_stay_within_the_epoch(cursor: int, k: int, windows: int) -> None:
    position = guest_position(cursor, "guest", k, windows)
    assert position // windows == cursor // windows


def test_a_guest_repeats_nothing_and_starts_far_from_the_members() -> None:
    windows = 20 * GUEST_SLOTS
    draws = [guest_position(3 * windows + 5, "guest", k, windows) for k in range(20)]
    assert len(set(draws)) == 20
    assert min(draws[:10]) > 3 * windows + windows // 3
    other = [guest_position(3 * windows + 5, "another", k, windows) for k in range(20)]
    assert not set(draws) & set(other)


def test_whoever_is_no_member_draws_as_a_guest() -> None:
    sampler = Sampler(5000, 1)
    assert sampler.draw_position(40, ["a", "b"], "b", 3) == 40 + 1 + 2 * 3
    assert sampler.draw_position(40, ["a", "b"], "c", 3) == guest_position(40, "c", 3, 5000)
    assert sampler.draw_position(40, [], "c", 3) == guest_position(40, "c", 3, 5000)


def test_epochs_have_different_orders() -> None:
    sampler = Sampler(200, 9)
    first = [sampler.window_at(i) for i in range(200)]
    second = [sampler.window_at(200 + i) for i in range(200)]
    assert sorted(first) == sorted(second)
    assert first != second
