import pytest
import torch

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
