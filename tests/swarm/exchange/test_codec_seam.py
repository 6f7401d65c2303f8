"""A codec of another kind, top-k with error feedback, is one class and one line of the registry."""

import pytest
import torch
from threaded_ring import Make, sources
from top_k_codec import TopK

from atom.config.run_file import CODECS
from atom.swarm.exchange.codec import codec_named

ELEMENTS, ROUNDS, SCALE = 40_000, 24, 1 / 64


def test_codec_top_k_gives_all_members_one_result_and_keeps_what_it_leaves_out(
    swarm_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round for round each member adds what its encoding took away: over several rounds nothing is
    lost but what is still owed."""
    monkeypatch.setitem(CODECS, "top-k", "top_k_codec:TopK")  # the registry's line
    codec = codec_named("top-k")
    assert isinstance(codec, TopK)
    swarm, constant = swarm_of(3, (2, 1, 0)), sources(3, ELEMENTS)
    owed = torch.zeros(3, ELEMENTS)
    total = torch.zeros(ELEMENTS, dtype=torch.float64)
    for _ in range(ROUNDS):
        gradients = [part + lost for part, lost in zip(constant, owed, strict=True)]
        mean = swarm.average(gradients, residuals=list(owed), codec=codec)
        assert 0 < mean.count_nonzero() < ELEMENTS / 2
        total += mean.double()
    exact = ROUNDS * sum(part.double() for part in constant)
    torch.testing.assert_close(total / SCALE + owed.double().sum(0), exact, rtol=1e-4, atol=1e-2)
