import pytest
import torch

from atom.optim.gradients import GradientArena


@pytest.fixture
def arena() -> GradientArena:
    """Two passes of three sequences each."""
    arena = GradientArena(torch.zeros(4))
    arena.reset()
    arena.flat += 1  # old content, which the first pass replaces
    for total in (1, 2):
        with arena.accumulating(lambda: True):
            arena.flat.fill_(total)
        arena.count(3, 6.5)
    return arena


def test_counts_until_a_reset(arena: GradientArena) -> None:
    assert (arena.sequences, arena.loss_sum) == (6, 13.0)
    assert arena.sums is arena.flat
    assert arena.sums.tolist() == [2] * 4
    arena.reset()
    assert (arena.sequences, arena.loss_sum) == (0, 0.0)
    assert arena.flat.any(), "readers of the earlier sums may go on"
    assert not arena.sums.any()


def test_what_a_peer_has_spent_stays_counted(arena: GradientArena) -> None:
    arena.spend()
    assert (arena.sequences, arena.unspent) == (6, 0)
    assert not arena.sums.any()


def test_what_a_round_takes_leaves_the_rest_counted(arena: GradientArena) -> None:
    arena.spend()
    arena.count(2, 1.0)
    arena.taken(6, 13.0)
    assert (arena.sequences, arena.loss_sum, arena.unspent) == (2, 1.0, 2)
    assert arena.spent == (0, 0.0)
    arena.taken(3, 5.0)
    assert (arena.sequences, arena.loss_sum) == (0, 0.0), "it was in a round of another process"


def test_a_pass_that_breaks_off_costs_nothing_that_is_spent(arena: GradientArena) -> None:
    arena.spend()
    arena.count(2, -20.0)
    with pytest.raises(RuntimeError), arena.accumulating(lambda: True):
        raise RuntimeError
    assert (arena.sequences, arena.loss_sum, arena.unspent) == (6, 13.0, 0)


@pytest.mark.parametrize("touched", [False, True])
@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_pass_that_breaks_off_with_a_part_of_it_there_takes_all_with_it(
    arena: GradientArena, failure: type[BaseException], touched: bool
) -> None:
    with pytest.raises(failure), arena.accumulating(lambda: touched):
        raise failure
    assert (arena.sequences, arena.loss_sum) == ((0, 0.0) if touched else (6, 13.0))
    assert arena.sums.tolist() == [0 if touched else 2] * 4


def test_who_reads_the_sums_waits_until_they_have_landed() -> None:
    flat = torch.zeros(4)
    arena = GradientArena(flat, lambda: flat.fill_(3))
    arena.count(1, 0.5)
    assert arena.sums.tolist() == [3.0] * 4
