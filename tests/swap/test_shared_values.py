"""Values that are the same in every micro-batch are held once per pass, with the same bits."""

import dataclasses
from collections import defaultdict

import pytest
import torch
from crossing_models import TOKENS, WIDTH, Masked, batch
from engine_rig import assert_same
from test_offloaded_values import Rig, program_of
from torch import Tensor, nn

from atom.graph.ir import SubModel
from atom.graph.program import compile_program
from atom.graph.segment import Computed
from atom.swap import computation
from atom.swap.schedule import Arrangement

MICRO_BATCHES, EVERY = 3, frozenset(range(6))
ARRANGEMENTS = pytest.mark.parametrize(
    "arrangement",
    [Arrangement(), Arrangement(2, EVERY), Arrangement(2, EVERY, EVERY)],
    ids=["swapped", "resident", "kept"],
)


@torch.library.custom_op("atom_tests::noise", mutates_args=())
def noise(extent: int) -> Tensor:
    """Draws random numbers, and does not say so."""
    return torch.rand(extent)


@noise.register_fake
def _(extent: int) -> Tensor:
    return torch.empty(extent)


class Noisy(Masked):
    """Model whose table is random and whose mask is not."""

    def table(self) -> Tensor:
        return noise(WIDTH) * torch.ones(TOKENS, WIDTH)


@ARRANGEMENTS
def test_held_once_with_the_bits_of_one_each(arrangement: Arrangement) -> None:
    program = program_of("masked", "layers")
    each = dataclasses.replace(program, shared=frozenset())
    assert program.shared
    story = Rig(program, arrangement).story(MICRO_BATCHES)
    assert_same(story, Rig(each, arrangement).story(MICRO_BATCHES))
    assert len(set(story[0][0])) == MICRO_BATCHES


@ARRANGEMENTS
def test_every_micro_batch_is_given_the_same_memory(
    arrangement: Arrangement, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: defaultdict[str, list[Tensor]] = defaultdict(list)
    compute, program = computation.compute, program_of("masked", "layers")

    def watched(
        module: nn.Module, sub_model: SubModel, values: dict[str, Tensor], record: bool = True
    ) -> Computed:
        for name in sub_model.inputs:
            given[name].append(values[name])  # alive, so that no address is used twice
        return compute(module, sub_model, values, record)

    monkeypatch.setattr(computation, "compute", watched)
    Rig(program, arrangement).run_pass(1, MICRO_BATCHES)
    for name in given.keys() - program.batch_inputs:
        addresses = {value.data_ptr() for value in given[name]}
        assert len(addresses) == (1 if name in program.shared else MICRO_BATCHES)


def test_what_an_unknown_operator_makes_is_each_micro_batch_s_own() -> None:
    model = Noisy()
    program = compile_program(model, batch(0))
    assert program.shared, "the mask"
    assert not any(name.startswith(("noise", "mul")) for name in program.shared)
    rig = Rig(program, Arrangement())
    for name, value in model.named_parameters():
        rig.store.write_weights(name, value)
    rig.store.changed()
    losses, _ = rig.run_pass(0, MICRO_BATCHES)
    for seed, found in enumerate(losses):
        torch.manual_seed(seed)
        assert found == model(**batch(seed)).item()
