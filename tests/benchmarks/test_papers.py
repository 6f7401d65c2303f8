"""Arithmetic of the papers' rows: memory of a pipeline's stages, steps of an all-reduce."""

from atom.plan.memory import Piece
from atom.swap.crossing import Crossing
from benchmarks.papers import memory, same_loss


def layer(name: str, elements: int, working: int) -> Piece:
    """Return a layer whose output has 10 bytes."""
    crossing = Crossing(0, (1,), 10, 10)
    return Piece({name: elements}, 1.0, 2.0, working, transient_bytes=5, crossings=(crossing,))


def test_a_stage_holds_its_parameters_all_micro_batches_and_one_layer_at_work() -> None:
    layers = [layer("a", 100, working=30), layer("b", 50, working=70)]
    assert memory.stage_bytes(layers, 3, parameter_bytes=18) == 18 * 150 + 3 * 2 * 10 + (70 + 5)


def test_the_largest_stage_counts_and_the_first_holds_most_micro_batches() -> None:
    layers = [layer(name, 100, working=0) for name in "abcd"]
    per_layer = 100 * memory.BYTES_PER_PARAMETER
    assert memory.largest_stage_bytes(layers, 1) == 4 * (per_layer + 10) + 5
    assert memory.largest_stage_bytes(layers, 4) == per_layer + 4 * 10 + 5
    layers[3] = layer("d", 1000, working=0)
    assert memory.largest_stage_bytes(layers, 4) == 10 * per_layer + 10 + 5


def test_replicas_together_lose_what_plain_pytorch_loses() -> None:
    equal, apart = same_loss.together(members=2, steps=3)
    assert equal == 3
    assert apart < 1e-6


def test_grids_of_devices_lose_what_one_device_loses() -> None:
    assert same_loss.on_grids(steps=2) == 2
