"""Two runs on one box: their daemons take turns on the processor, and lose nothing by it."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from swarm_of_processes import PEER, START_S, Event, Peer, endless, until

TURNS = """
share = {share}
slot = "200 ms"

[network]"""
SLOW = 2048
"""Sequences of a round that takes several turns, also where a second is enough for 512."""
SHARE = 1.1
"""Of the second. With 2 it would first be owed twice the seconds that the first was set up in."""
ROUND_S = 60.0
"""Within which turns and rounds come, on a machine with better things to do."""


def peer_of_a_run(root: Path, name: str, share: float, global_sequences: int) -> Peer:
    run = endless(name, grace_s=2, snapshot_rounds=50)
    sized = f"global_sequences = {global_sequences}"
    (root / f"{name}.run.toml").write_text(run.replace("global_sequences = 96", sized))
    text = PEER.format(memory="auto").replace("[network]", TURNS.format(share=share))
    (root / f"{name}.toml").write_text(text)
    return Peer(name, root)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Peer, Peer]]:
    """Rounds of the first fit into a turn; those of the second take several."""
    (tmp_path / "t").mkdir()
    peers = peer_of_a_run(tmp_path, "one", 1, 96), peer_of_a_run(tmp_path, "two", SHARE, SLOW)
    for peer in peers:
        peer.start("start", str(tmp_path / f"{peer.name}.run.toml"))
    yield peers
    for peer in peers:
        peer.remove()


def turns_of(peer: Peer) -> list[tuple[float, float]]:
    """From when to when it had the device, in order; without the one it was set up in."""
    told = [event for event in peer.events() if event["event"] in ("turn-began", "turn-ended")]
    kinds = [event["event"] for event in told]
    assert all(a != b for a, b in pairwise(kinds)), kinds
    return [
        (began["time"], ended["time"])
        for began, ended in pairwise(told)
        if began["event"] == "turn-began"
    ]


def switches_in_a_round(peer: Peer) -> list[tuple[Event, Event]]:
    """Ends of turns with work counted, each with the round that was committed next."""
    told = [event for event in peer.events() if event["event"] in ("turn-ended", "round")]
    return [
        (event, committed)
        for n, event in enumerate(told)
        if event["event"] == "turn-ended" and event["mini_batches"]
        for committed in [e for e in told[n:] if e["event"] == "round"][:1]
    ]


def counts_within_rounds(peer: Peer) -> list[list[int]]:
    """What it had counted when its turns ended, for each round. A turn that ends with a round is
    told a moment before the round is, and what it leaves belongs to the next."""
    counts: list[list[int]] = [[]]
    for event in peer.events():
        if event["event"] == "round" or event.get("with_round"):
            counts.append([])
        elif event["event"] == "turn-ended":
            counts[-1].append(event["mini_batches"])
    return counts


@pytest.mark.timeout(START_S + 5 * ROUND_S)
def test_two_runs_take_turns_and_lose_nothing(two: tuple[Peer, Peer]) -> None:
    one, two_ = two
    until(lambda: len(turns_of(one)) >= 2 and len(turns_of(two_)) >= 2, two, START_S)
    until(lambda: switches_in_a_round(two_), two, ROUND_S)

    for ended, committed in switches_in_a_round(two_):
        assert committed["contributed"] == [committed["sequences"]]
        assert committed["contributed"][0] >= max(ended["mini_batches"], SLOW)
    for counts in counts_within_rounds(two_):
        assert counts == sorted(counts), "nothing that was counted is lost between turns"
    turns = sorted([(*turn, peer.name) for peer in two for turn in turns_of(peer)])
    assert all(a[1] <= b[0] for a, b in pairwise(turns)), "no two have the device at once"
    assert all(a[2] != b[2] for a, b in pairwise(turns)), "they alternate"

    assert shares_seen_by(one) == {"one": 1.0, "two": SHARE}
    one.control.set(["device.share=4"])
    until(lambda: shares_seen_by(two_) == {"one": 4.0, "two": SHARE}, two, ROUND_S)

    until(lambda: has_the_device(one), two, ROUND_S)
    assert one.kill() == []
    before = len(two_.rounds)
    until(lambda: len(two_.rounds) > before, [two_], ROUND_S)
    shown = two_.control.info()["device_turns"]["runs"]
    assert [(row["run"], row["turn"]) for row in shown] == [("two", "has the device")]


def shares_seen_by(peer: Peer) -> dict[str, float]:
    return {row["run"]: row["share"] for row in peer.control.info()["device_turns"]["runs"]}


def has_the_device(peer: Peer) -> bool:
    kinds = [e["event"] for e in peer.events() if e["event"] in ("turn-began", "turn-ended")]
    return kinds[-1] == "turn-began"
