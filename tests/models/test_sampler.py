import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from atom.models.data.sampler import (
    BLOCK_PIECES,
    GUEST_SLOTS,
    Order,
    Permutation,
    Sampler,
    guest_position,
)

sizes = st.integers(1, 700)
seeds = st.integers(0, 2**63 - 1)


@given(size=sizes, seed=seeds)
@settings(max_examples=25, deadline=None)
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
@settings(max_examples=25, deadline=None)
def test_members_never_share_a_sample_within_an_epoch(
    windows: int, rounds: list[list[int]], seed: int
) -> None:
    sampler, cursor = Sampler((Order(windows, 30, seed),)), 0
    drawn = []
    for counts in rounds:
        names = [f"peer-{rank}" for rank in range(len(counts))]
        for name, count in zip(names, counts, strict=True):
            drawn += [sampler.draw_position(cursor, names, name, k) for k in range(count)]
        cursor += len(counts) * max(counts)
    assert len(set(drawn)) == len(drawn)
    seen = {(position // windows, sampler.window_at(position)) for position in drawn}
    assert len(seen) == len(drawn)


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
    sampler = Sampler((Order(5000, 100, 1),))
    assert sampler.draw_position(40, ["a", "b"], "b", 3) == 40 + 1 + 2 * 3
    assert sampler.draw_position(40, ["a", "b"], "c", 3) == guest_position(40, "c", 3, 5000)
    assert sampler.draw_position(40, [], "c", 3) == guest_position(40, "c", 3, 5000)


pieces = st.integers(1, 3 * BLOCK_PIECES)


@given(
    count=pieces, piece_windows=st.integers(1, 6), less=st.integers(0, 5), epoch=st.integers(0, 3)
)
@settings(max_examples=25, deadline=None)
def test_an_epoch_goes_through_blocks_of_pieces(
    count: int, piece_windows: int, less: int, epoch: int
) -> None:
    windows = count * piece_windows - min(less, piece_windows - 1)
    sampler, of_block = Order(windows, piece_windows, 7), BLOCK_PIECES * piece_windows
    shown = [sampler.window_at(epoch * windows + place) for place in range(windows)]
    assert sorted(shown) == list(range(windows))
    blocks = [shown[first : first + of_block] for first in range(0, windows, of_block)]
    of_blocks = [{window // piece_windows for window in block} for block in blocks]
    assert sum(map(len, of_blocks)) == count, "a piece is in one block"
    assert {len(pieces) for pieces in of_blocks[:-1]} <= {BLOCK_PIECES}


def test_both_pieces_and_windows_are_shuffled() -> None:
    sampler = Order(10 * BLOCK_PIECES * 8, 8, 3)
    order = [sampler.window_at(place) for place in range(sampler.windows)]
    first = order[: BLOCK_PIECES * 8]
    assert len({window // (BLOCK_PIECES * 8) for window in first}) > 5, "pieces from everywhere"
    assert len({window // 8 for window in first[:16]}) > 10
    another = [sampler.window_at(sampler.windows + place) // 8 for place in range(len(first))]
    assert set(another) != {window // 8 for window in first}


@given(count=pieces, piece_windows=st.integers(1, 40), less=st.integers(0, 39), at=st.floats(0, 2))
@settings(max_examples=25, deadline=None)
def test_pieces_come_in_the_order_in_which_positions_need_them(
    count: int, piece_windows: int, less: int, at: float
) -> None:
    windows = count * piece_windows - min(less, piece_windows - 1)
    sampler, cursor = Order(windows, piece_windows, 5), int(at * windows)
    came = [piece for _, piece in sampler.pieces_from(cursor)]
    assert sorted(came) == list(range(count))
    needed = [sampler.window_at(cursor + k) // piece_windows for k in range(min(1000, windows))]
    first = list(dict.fromkeys(needed))
    of_this_epoch = first[: len({*needed[: windows - cursor % windows]})]
    assert came[: len(of_this_epoch)] == of_this_epoch


def test_the_pieces_of_a_huge_text_are_told_at_once() -> None:
    sampler = Order(2**40, 2**18, 1)
    (_, first), *others = itertools.islice(sampler.pieces_from(2**39), 100)
    assert first == sampler.window_at(2**39) // 2**18
    assert len({first, *(piece for _, piece in others)}) == 100


# ---- several texts


def mixture(windows: tuple[int, ...], weights: tuple[int, ...], seed: int = 3) -> Sampler:
    return Sampler(tuple(Order(count, 4, seed) for count in windows), weights, seed)


texts = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 9)), min_size=1, max_size=5)


@given(texts=texts, first=st.integers(0, 1000), cycles=st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_every_cycle_has_each_text_by_its_weight(
    texts: list[tuple[int, int]], first: int, cycles: int
) -> None:
    windows, weights = zip(*texts, strict=True)
    sampler = mixture(windows, weights)
    for cycle in range(first, first + cycles):
        places = range(cycle * sampler.cycle, (cycle + 1) * sampler.cycle)
        shown = [sampler.window_at(place)[0] for place in places]
        assert [shown.count(text) for text in range(len(texts))] == list(weights)


def test_each_text_has_epochs_of_its_own() -> None:
    sampler = mixture((30, 7), (5, 2))
    shown: dict[int, list[int]] = {0: [], 1: []}
    for position in range(7 * 6 * 7):
        text, window = sampler.window_at(position)
        shown[text].append(window)
    for text, size in (0, 30), (1, 7):
        seen = shown[text]
        order = sampler.orders[text]
        assert sorted(seen) == sorted(order.window_at(at) for at in range(len(seen)))
        counts = [seen.count(window) for window in range(size)]
        assert max(counts) - min(counts) <= 1
    assert sampler.epochs(7 * 6 * 7) == [len(shown[0]) / 30, len(shown[1]) / 7]


def test_a_member_that_takes_every_other_position_sees_all_texts() -> None:
    sampler = mixture((1000, 1000), (1, 1))
    shown = [sampler.window_at(position)[0] for position in range(0, 200, 2)]
    assert 25 < sum(shown) < 75


def test_guests_of_a_mixture_begin_far_from_the_members() -> None:
    sampler = mixture((40 * GUEST_SLOTS, 100), (3, 1))
    assert sampler.epoch // 4 * 3 >= 40 * GUEST_SLOTS, "the longest text is shown as a whole"
    guest = [sampler.draw_position(5, ["a"], "guest", k) for k in range(10)]
    assert min(guest) > sampler.epoch // 2


@given(texts=texts, position=st.integers(0, 3000))
@settings(max_examples=25, deadline=None)
def test_pieces_of_all_texts_come_as_cycles_need_them(
    texts: list[tuple[int, int]], position: int
) -> None:
    windows, weights = zip(*texts, strict=True)
    sampler = mixture(windows, weights)
    came = list(sampler.pieces_from(position))
    assert len(came) == len(set(came)) == sum(-(-count // 4) for count in windows)
    start = position - position % sampler.cycle
    needed: dict[tuple[int, int], int] = {}
    for at in range(start, start + 40 * sampler.cycle):
        text, window = sampler.window_at(at)
        needed.setdefault((text, window // 4), (at - start) // sampler.cycle)
    cycles = [needed.get(piece, 40) for piece in came]
    assert cycles == sorted(cycles)
