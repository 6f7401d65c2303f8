import json
import math
from typing import Any

import pytest

from atom.config.model_and_data import Data
from atom.swarm.chain.commit import Branch
from atom.swarm.identity import Identity
from atom.swarm.records.lease import (
    HowReached,
    Lease,
    PeerState,
    Reached,
    RoundUse,
    SampleText,
    Validation,
)
from atom.swarm.records.view import (
    SwarmView,
    dialable_text,
    owners_among,
    preferred_head,
    remaining,
    validation_by_text,
    validation_json,
    validation_text,
    view_swarm,
)
from tests.swarm.swarm_samples import HEAD, a_lease, a_manifest

OTHER = b"x" * 32
LEFT = (Branch(4, 1, b"n" * 8),)
MANIFEST = a_manifest(Identity.create())


def view_of(*leases: Lease) -> SwarmView:
    return view_swarm(MANIFEST, leases, global_batch=12, unix_time=a_lease().issued_at + 2.5)


def test_the_view_is_computed_at_the_preferred_head_and_speed_also_just_behind_it() -> None:
    view = view_of(
        a_lease("b", sequences=4, round=9, loss=2.5),
        a_lease("a", sequences=3, round=9, loss=None, state=PeerState.LEAVING),
        a_lease("c", sequences=50, round=12, head=OTHER, loss=1.0, branches=LEFT),
        a_lease("d", sequences=6, round=9, state=PeerState.LEFT),
        a_lease("e", round=8, head=OTHER, tokens_per_s=100.0),  # the commit is on its way
        a_lease("f", round=8, head=OTHER, tokens_per_s=100.0, state=PeerState.LEFT),
        a_lease("g", round=7, head=OTHER, tokens_per_s=100.0),
    )
    assert (view.round, view.accumulated, view.loss) == (9, 7, 2.5)
    assert view.head == HEAD.hex()
    assert view.tokens_per_s == 2 * 80.0 + 100.0
    assert [peer.peer_id for peer in view.peers] == list("abcdefg")


@pytest.mark.parametrize(
    ("able", "members", "text"),
    [
        (1, 8, "1 of 8 peers is dialable: its line carries 7 averages; one more makes it 4"),
        (4, 8, "4 of 8 peers are dialable: each line carries 2.5 averages; one more makes it 2.2"),
        (8, 8, ""), (0, 8, ""), (1, 2, ""),
    ],
)  # fmt: skip
def test_the_value_of_one_more_peer_that_can_be_dialled(able: int, members: int, text: str) -> None:
    reached = [Reached.YES] * able + [Reached.NO] * (members - able)
    assert dialable_text(a_lease(f"{n}", reached=can) for n, can in enumerate(reached)) == text


def test_hidden_peers_may_own_parts_if_all_of_them_are_steady() -> None:
    steady = {"reached": Reached.NO, "reach": HowReached.PUNCHED}
    called = {"reached": Reached.NO, "reach": HowReached.CALLED}
    peers = [a_lease("a", reached=Reached.YES), a_lease("b", **steady), a_lease("c", **steady)]
    assert owners_among(peers) == 3
    assert dialable_text(peers) == ""
    assert owners_among([*peers, a_lease("d", **called)]) == 1
    left = a_lease("d", **called, state=PeerState.LEFT)
    assert owners_among([*peers, left]) == 3


def test_peers_of_another_version_do_not_count_and_are_named() -> None:
    old = [
        a_lease(name, version=version, round=99)
        for name, version in zip("bcde", (19, 0, 19, 19), strict=True)
    ]
    view = view_of(a_lease("a", sequences=3, round=9), *old)
    assert (view.round, view.accumulated, [peer.peer_id for peer in view.peers]) == (9, 3, ["a"])
    assert view.other_versions == (
        "1 peer runs protocol version 0, 3 peers run protocol version 19"
    )
    assert view.other_versions in view.outlook(None)
    assert view_of(a_lease("a")).other_versions == ""


def test_an_empty_swarm_and_a_clock_that_runs_ahead() -> None:
    assert preferred_head([a_lease("a", head=b"", round=10**9), a_lease("b")]) == HEAD
    assert preferred_head([a_lease("a", head=b"")]) == b""
    empty = view_of()
    assert (empty.round, empty.accumulated, empty.loss, empty.peers) == (0, 0, None, ())
    ahead = a_lease(issued_at=2e9)
    assert view_of(ahead).age_s(ahead) == 0.0


def test_the_newest_validation_and_the_middle_time_of_those_at_the_head() -> None:
    said = [
        (4, 2.0, 10.0, 15.0, "old"), (6, 1.5, 30.0, 25.0, "new"), (10**9, 0.0, 20.0, 0.0, "made up")
    ]  # fmt: skip
    leases = [
        a_lease(
            f"p{n}",
            round=7,
            validation=Validation(at, loss),
            last_round=RoundUse(seconds, 1.0, 0, 0, mean),
            sample=SampleText(at, text),
        )
        for n, (at, loss, seconds, mean, text) in enumerate(said)
    ]
    seen = view_of(*leases, a_lease("silent", round=7))
    assert seen.round_s == 20.0, "of an older version, which sends no mean, the last round"
    assert seen.validation == {"round": 6, "loss": 1.5, "texts": {}}, "none of a later round"
    shown = seen.to_json()
    assert shown["validation"] == seen.validation
    assert shown["sample"] == {"round": 6, "text": "new"}
    nothing = view_of()
    assert (nothing.validation, nothing.round_s) == (None, None)
    assert nothing.to_json()["sample"] is None


@pytest.mark.parametrize(
    ("tokenizer", "texts", "losses", "said"),
    [
        ("bytes", ("", ), (math.log(4),), "validation 1.3863 (2.000 bits per byte) after round 9"),
        ("t.json", ("", ), (math.log(50),), "validation 3.9120 (perplexity 50) after round 9"),
        (
            "bytes", ("b", "a"), (math.log(2), math.log(8)),
            "validation 1.3863 (2.000 bits per byte) after round 9"
            "a 0.6931 (1.000 bits per byte), b 2.0794 (3.000 bits per byte)",
        ),
    ],
)  # fmt: skip
def test_what_a_loss_of_text_means(
    tokenizer: str, texts: tuple[str, ...], losses: tuple[float, ...], said: str
) -> None:
    source: dict[str, Any] = {"source": "python-stdlib"}
    several = {"sources": dict.fromkeys(texts, source)}
    data = Data(tokenizer=tokenizer, validation_fraction=0.1, **(several if texts[0] else source))
    told = validation_json(Validation.of(9, losses), data)
    assert validation_text(told) + validation_by_text(told) == said
    assert told is not None
    assert set(told["texts"]) == set(filter(None, texts))


def test_what_a_loss_of_samples_means_is_not_known() -> None:
    for data in (None, Data(source="module")):
        assert validation_text(validation_json(Validation(9, 1.5), data)) == (
            "validation 1.5000 after round 9"
        )
    assert validation_text(None) == ""


@pytest.mark.parametrize(
    ("rounds", "at", "round_s", "said"),
    [
        (100, 40, 1.0, "60 s to go"), (100, 40, 60.0, "60 min to go"), 
        (100, 0, 3600.0, "4.2 days to go"),
        (100, 0, 100.0, "2.8 h to go"), (None, 1, 1.0, ""), (7, 7, 1.0, ""), (7, 6, None, ""),
    ],
)  # fmt: skip
def test_how_long_a_run_goes_on(
    rounds: int | None, at: int, round_s: float | None, said: str
) -> None:
    assert remaining(rounds, at, round_s) == said


def test_rate_reach_and_last_round_of_each_peer_are_shown() -> None:
    use = RoundUse(8.5, 0.25, 4096, 2048, 9.0)
    leases = [a_lease(f"peer {n}", reach=way) for n, way in enumerate(HowReached)]
    view = view_of(a_lease("a", sequences_per_s=1.23456, last_round=use), *leases)
    first, *others = json.loads(json.dumps(view.to_json()))["peers"]
    assert (first["rate"], first["last_round"]) == (
        1.235,
        {"seconds": 8.5, "utilisation": 0.25, "sent_bytes": 4096, "received_bytes": 2048,
         "usual_seconds": 9.0},
    )  # fmt: skip
    words = ["open", "mapped", "punched", "called"]
    assert [peer["reach"] for peer in others] == [*words, "unknown"]
    assert [view.row(peer)["reach"] for peer in view.peers[1:]] == [*words, "-"]
