"""Who is told of gradients as they land is told the truth: what is final, and each element once."""

from collections.abc import Sequence

import pytest
import torch
from engine_rig import EngineRig
from hand_written_program import FINEST, HALVES, WHOLE, batches

from atom.swap.voided import PassVoided


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cut", [FINEST, HALVES, WHOLE], ids=["finest", "halves", "whole"])
def test_each_element_once_when_it_is_final(
    cut: Sequence[Sequence[str]], precision: torch.dtype
) -> None:
    rig = EngineRig(cut, precision)
    arena, seen = rig.store.gradients, list[tuple[int, int, torch.Tensor]]()
    rig.engine.run_pass(batches([3]), [5], first=True)
    rig.engine.run_pass(
        batches([2, 3], seed=1),
        [1, 2],
        landed=lambda start, stop: seen.append((start, stop, arena[start:stop].clone())),
    )
    seen.sort(key=lambda part: part[0])
    assert [start for start, _, _ in seen] == [0, *(stop for _, stop, _ in seen[:-1])]
    assert torch.equal(torch.cat([part for _, _, part in seen]), arena)
    assert len(seen) >= len(cut)
    rig.device.close()


def test_nothing_of_a_bad_gradient_lands() -> None:
    rig = EngineRig(FINEST)
    rig.parameter("head.bias").fill_(float("inf"))
    rig.store.round_master()
    seen = list[tuple[int, int]]()
    with pytest.raises(PassVoided):
        rig.engine.run_pass(batches([2]), [1], landed=lambda *part: seen.append(part))
    assert seen == []
    rig.device.close()
