"""A codec of another kind, top-k with error feedback, is one class and one line of the registry."""

import threading

import numpy
import pytest
import torch
from threaded_ring import SOON, Make, sources
from top_k_codec import TopK

from atom.base.reasons import Reason
from atom.config.run_file import CODECS
from atom.swarm.exchange.channels import Channels
from atom.swarm.exchange.codec import codec_named
from atom.swarm.exchange.plans import chunk_header
from atom.swarm.stream.frames import Kind, Patience

ELEMENTS, ROUNDS, SCALE = 40_000, 24, 1 / 64


@pytest.fixture
def codec(monkeypatch: pytest.MonkeyPatch) -> TopK:
    monkeypatch.setitem(CODECS, "top-k", "top_k_codec:TopK")  # the registry's line
    found = codec_named("top-k")
    assert isinstance(found, TopK)
    return found


def test_codec_top_k_gives_all_members_one_result_and_keeps_what_it_leaves_out(
    swarm_of: Make, codec: TopK
) -> None:
    """Round for round each member adds what its encoding took away: over several rounds nothing is
    lost but what is still owed."""
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


def test_codec_bytes_that_top_k_never_writes_name_their_sender(swarm_of: Make, codec: TopK) -> None:
    swarm = swarm_of(2, (1, 0))
    header = chunk_header(swarm.terms(1).tag, next(swarm.terms(1).plan(4096).stream(1, 0)))
    twice = numpy.float32([1, 2]).tobytes() + numpy.int32([7, 7]).tobytes()

    def send_it(channels: Channels, over: threading.Event) -> None:
        channels.right[0].send_frame(Kind.CHUNK, header, twice, patience=Patience(SOON))
        over.wait(SOON)

    failure = swarm.broken_by(1, send_it, 4096, codec=codec)[0]
    assert (failure.suspect, failure.reason) == (swarm.order[1], Reason.MALFORMED)
