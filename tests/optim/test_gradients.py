import pytest
import torch

from atom.optim.clipping import gradient_norm
from atom.optim.gradients import GradientArena, GradientsPoisoned


def test_counts_and_reset() -> None:
    arena = GradientArena(torch.zeros(4))
    arena.reset(b"head")
    with arena.accumulating(lambda: True):
        arena.flat += 1
        arena.count(3, 6.5)
    with arena.accumulating(lambda: True):
        arena.count(2, 1.0)
    assert (arena.tag, arena.sequences, arena.loss_sum) == (b"head", 5, 7.5)
    assert arena.sums is arena.flat
    arena.reset(b"next")
    assert (arena.tag, arena.sequences, arena.loss_sum) == (b"next", 0, 0.0)
    assert not arena.sums.any()


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_pass_poisons(failure: type[BaseException]) -> None:
    arena = GradientArena(torch.zeros(4))

    def interrupted() -> None:
        with arena.accumulating(lambda: True):
            arena.flat += 1
            raise failure

    with pytest.raises(failure):
        interrupted()
    with pytest.raises(GradientsPoisoned):
        _ = arena.sums
    with pytest.raises(GradientsPoisoned), arena.accumulating(lambda: False):
        pytest.fail("a poisoned arena takes no more")
    arena.reset()
    assert not arena.sums.any()


def test_a_pass_interrupted_before_it_added_anything_poisons_nothing() -> None:
    arena = GradientArena(torch.zeros(4))
    with arena.accumulating(lambda: True):
        arena.flat += 1
        arena.count(3, 6.5)
    with pytest.raises(RuntimeError), arena.accumulating(lambda: False):
        raise RuntimeError
    assert torch.equal(arena.sums, torch.ones(4))
    assert arena.sequences == 3


def test_the_norm_of_a_last_pass_is_that_of_the_whole() -> None:
    arena = GradientArena(torch.zeros(100))
    for last in (False, True):
        with arena.accumulating(lambda: True, last) as landed:
            arena.flat += torch.arange(100)
            assert (landed is not None) is last
            if landed is not None:
                landed(40, 100)
                landed(0, 40)
    assert arena.norm() == gradient_norm(2.0 * torch.arange(100)) == arena.norm()


@pytest.mark.parametrize("again", [False, True])
def test_a_pass_after_the_last_one_counts_in_the_norm(again: bool) -> None:
    arena = GradientArena(torch.zeros(100))
    for last in (True, again):
        with arena.accumulating(lambda: True, last) as landed:
            arena.flat += 1
            if landed is not None:
                landed(0, 100)
    assert arena.norm() == 20.0


def test_a_last_pass_that_failed_leaves_no_norm() -> None:
    arena = GradientArena(torch.zeros(100))
    with arena.accumulating(lambda: True):
        arena.flat += 1
    with pytest.raises(RuntimeError), arena.accumulating(lambda: False, last=True):
        raise RuntimeError
    assert arena.norm() == 10.0
    with arena.accumulating(lambda: True, last=True):
        arena.flat += 1
    arena.reset()
    assert arena.norm() == 0.0
