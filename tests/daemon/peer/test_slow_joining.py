"""A volunteer hears beforehand that the peer would slow the run down, and only if it would."""

import pytest

from atom.config.load import parse_run_text
from atom.config.peer_file import Network
from atom.config.run_file import RunFile
from atom.daemon.peer.slow_joining import RoundNow, round_now, slow_joining
from atom.swarm.records.lease import Lease, PeerState, RoundUse
from tests.swarm.swarm_samples import a_lease

RUN = """
[run]
name = "tiny"
[model]
family = "gpt3"
layers = 1
heads = 1
model_dim = 8
[data]
source = "python-stdlib"
[batch]
global_sequences = 120
micro_batch_sequences = 4
[optimizer]
learning_rate = 1e-3
"""
LOCAL = RUN + '[update]\nrule = "local-steps"\ninner_sequences = 8\n'
ELEMENTS = 10**6
"""4 MB in float32: a second of 32 Mbit/s."""


def peers(*uses: RoundUse | None) -> list[Lease]:
    return [a_lease(f"peer {place}", last_round=use) for place, use in enumerate(uses)]


def run_of(text: str = RUN) -> RunFile:
    return parse_run_text(text)


def line(upload: str, download: str = "1 Gbit/s") -> Network:
    return Network.model_validate({"upload": upload, "download": download})


NOW = round_now(run_of(), peers(*3 * [RoundUse(20.0, 0.6, 0, 0)]), "me")
UNDER_PASSES = round_now(run_of(LOCAL), peers(*3 * [RoundUse(20.0, 1.0, 0, 0)]), "me")


def test_a_round_is_what_most_of_those_say_who_are_there() -> None:
    assert RoundNow(3, 20.0, 12.0, 120, overlapped=False) == NOW
    leases = [
        *peers(RoundUse(20.0, 0.6, 0, 0), RoundUse(20.0, 0.5, 0, 0), RoundUse(1e9, 1.0, 0, 0)),
        a_lease("new", last_round=None),
        a_lease("me", last_round=RoundUse(1.0, 1.0, 0, 0)),
        a_lease("gone", state=PeerState.LEFT, last_round=RoundUse(1.0, 1.0, 0, 0)),
        a_lease("asleep", state=PeerState.PAUSED, last_round=RoundUse(1.0, 1.0, 0, 0)),
    ]
    assert round_now(run_of(), leases, "me") == RoundNow(4, 20.0, 12.0, 120, overlapped=False)


def test_a_thin_line_is_told_with_what_would_help() -> None:
    """An average takes 60 s of it; 40 sequences a second of ours and 10 of theirs take 2.4 s."""
    words = slow_joining(run_of(), line("533333 bit/s"), ELEMENTS, 0.1, NOW)
    assert "takes 20.0 s now, and about 62.4 s with it" in words
    assert "carries one average in 60.0 s" in words
    for help in ("[network] upload", "more sequences a round", "a coarser codec", "local steps"):
        assert help in words


def test_with_local_steps_only_a_line_slower_than_a_round_is_told() -> None:
    said = [
        slow_joining(run_of(LOCAL), line(upload), ELEMENTS, 0.1, UNDER_PASSES)
        for upload in ("2 Mbit/s", "1 Mbit/s")
    ]
    assert said[0] == "", "16 s"
    assert "about 32.0 s with it" in said[1]
    assert "local steps" not in said[1]


@pytest.mark.parametrize(
    ("network", "now"),
    [
        (Network(), NOW),
        (line("100 Mbit/s"), NOW),
        (line("1 kbit/s"), None),
        (line("1 kbit/s"), round_now(run_of(), peers(None, None), "me")),
        (line("1 kbit/s"), round_now(run_of(), [], "me")),
    ],
)
def test_nothing_is_said_where_nothing_is_known_or_nothing_is_slower(
    network: Network, now: RoundNow | None
) -> None:
    assert slow_joining(run_of(), network, ELEMENTS, 0.1, now) == ""


def test_a_box_that_was_not_measured_gets_the_benefit_of_the_doubt() -> None:
    """8.7 s of a line of 3.7 Mbit/s: with infinite speed a round takes less than 20 s."""
    network = line("3700 kbit/s")
    assert slow_joining(run_of(), network, ELEMENTS, None, NOW) == ""
    assert slow_joining(run_of(), network, ELEMENTS, 1e6, NOW) != ""
