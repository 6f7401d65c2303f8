"""A volunteer hears beforehand that the peer would slow the run down, and only if it would."""

import pytest

from atom.config.load import parse_run_text
from atom.config.peer_file import Network
from atom.config.run_file import RunFile
from atom.daemon.peer.slow_joining import RoundNow, line_cost, round_now, seconds_with, slow_joining
from atom.swarm.records.lease import Lease, PeerState, RoundUse
from tests.daemon.tiny_run import GPT3, run_text
from tests.swarm.swarm_samples import a_lease

RUN = run_text("tiny", GPT3).replace("global_sequences = 8", "global_sequences = 120")
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


@pytest.mark.parametrize(
    ("line_s", "sequences_per_s", "seconds"),
    [(6.0, 10 / 3, 18), (60.0, 5.0, 68), (6.0, 1e-9, 21), (2.0, 5.0, 8 + 6)],
    ids=["like the others", "a thin line", "computes nothing", "a fast line carries more"],
)
def test_a_round_with_one_peer_more(line_s: float, sequences_per_s: float, seconds: int) -> None:
    """10 sequences a second now, and an exchange of 8 s: 4 / 3 averages, lines of 6 s each."""
    assert NOW is not None
    assert seconds_with(NOW, line_s, sequences_per_s) == pytest.approx(seconds)


def round_of(seconds: float, passes_s: float, overlapped: bool = False) -> RoundNow:
    return RoundNow(3, seconds, passes_s, 120, overlapped)


@pytest.mark.parametrize(
    ("upload", "now", "given", "said"),
    [
        # 4 s of 8 Mbit/s; without its third of the work passes take 15 s
        ("8 Mbit/s", round_of(11.0, 10.0), 40, "takes 11.0 s now, and about 14.0 s with it"),
        ("1 Mbit/s", round_of(42.0, 10.0), 40, "42.0 s it takes 32.0; without this peer a round"),
        ("1 Mbit/s", round_of(42.0, 10.0), 40, "takes about 15.0 s"),
        ("1 Mbit/s", round_of(11.0, 10.0), 0, "11.0 s now, and about 42.0 s with it; "),
        ("1 Mbit/s", round_of(10.0, 10.0, True), 40, "now, and about 32.0 s with it; the line"),
        ("8 Mbit/s", round_of(14.0, 10.0), 40, ""),
        ("8 Mbit/s", round_of(10.0, 10.0, True), 40, ""),
        ("1 Mbit/s", round_of(42.0, 10.0), 120, ""),
    ],
    ids=["new", "it takes", "without", "both", "local steps", "gives more", "under", "alone"],
)  # fmt: skip
def test_what_a_capped_line_costs_the_swarm(
    upload: str, now: RoundNow, given: int, said: str
) -> None:
    found = line_cost(line(upload), 4e6, now, given, is_new=True)
    assert said in found
    assert bool(said) == bool(found)
    assert line_cost(Network(), 4e6, now, given, is_new=True) == "", "no cap"
    in_force = line_cost(line(upload), 4e6, now, given, is_new=False)
    assert "with it" not in in_force
    assert found.endswith(in_force)


def test_one_peer_alone_had_no_exchange() -> None:
    alone = RoundNow(peers=1, seconds=12.0, passes_s=12.0, sequences=120, overlapped=False)
    assert seconds_with(alone, 6.0, 10.0) == pytest.approx(6 + 6)


def test_with_local_steps_only_a_line_slower_than_a_round_is_told() -> None:
    said = [
        slow_joining(run_of(LOCAL), line(upload), ELEMENTS, 0.1, UNDER_PASSES)
        for upload in ("2 Mbit/s", "1 Mbit/s")
    ]
    assert said[0] == "", "16 s"
    assert "about 32.0 s with it" in said[1]
    assert "local steps" not in said[1]


@pytest.mark.parametrize(
    ("network", "micro_batch_s", "now"),
    [
        (Network(), 0.1, NOW),
        (line("100 Mbit/s"), 0.1, NOW),
        (line("1 kbit/s"), 0.1, round_now(run_of(), peers(None, None), "me")),
        (line("3700 kbit/s"), None, NOW),
    ],
    ids=["no cap", "not slower", "nobody saw a round", "not measured: its best is believed"],
)
def test_nothing_is_said_where_nothing_is_known_or_nothing_is_slower(
    network: Network, micro_batch_s: float | None, now: RoundNow | None
) -> None:
    assert slow_joining(run_of(), network, ELEMENTS, micro_batch_s, now) == ""
