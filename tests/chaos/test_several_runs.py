"""Two runs on one box: their daemons take turns on the processor, and lose nothing by it."""

from itertools import pairwise
from pathlib import Path

import pytest
from swarm_of_processes import PEER, START_S, Event, Peer, endless, swarm_in

TURNS = """
slot = "200 ms"

[network]"""
SLOW = 2048
"""Sequences of a round that takes several turns, also where a second is enough for 512."""
ROUND_S = 120.0
"""Within which turns and rounds come, on a machine with better things to do."""


def told_of_turns(peer: Peer) -> list[Event]:
    return [event for event in peer.events() if event["event"] in ("turn-began", "turn-ended")]


def turns_of(peer: Peer) -> list[tuple[float, float, str]]:
    """From when to when it had the device, in order; without the one it was set up in."""
    told = told_of_turns(peer)
    kinds = [event["event"] for event in told]
    assert all(a != b for a, b in pairwise(kinds)), kinds
    return [
        (began["time"], ended["time"], peer.name)
        for began, ended in pairwise(told)
        if began["event"] == "turn-began"
    ]


def rounds_over_turns(peer: Peer) -> list[tuple[int, Event]]:
    """Rounds in which it gave the device away, with what it had counted by then. Nothing of that is
    lost between turns. What is left of a turn that ends with a round belongs to the next one."""
    found, counted = [], 0
    for event in peer.events():
        if event["event"] == "turn-ended":
            with_round = event.get("with_round")
            assert with_round or event["sequences"] >= counted
            counted = 0 if with_round else event["sequences"]
        elif event["event"] == "round":
            found += [(counted, event)] if counted else []
            counted = 0
    return found


@pytest.mark.timeout(START_S + 5 * ROUND_S)
def test_two_runs_take_turns_and_lose_nothing(tmp_path: Path) -> None:
    """Rounds of the first fit into a turn; those of the second take several."""
    with swarm_in(tmp_path, endless("one", 2, 50), ("one", "two"), "auto") as swarm:
        one, two = swarm.peers
        for peer, batch in ((one, 96), (two, SLOW)):
            run, batch_key = endless(peer.name, 2, 50), "global_sequences = "
            run = run.replace(f"{batch_key}96", f"{batch_key}{batch}")
            (tmp_path / f"{peer.name}.run.toml").write_text(run)
            text = PEER.format(memory="auto").replace("[network]", TURNS)
            (tmp_path / f"{peer.name}.toml").write_text(text)
            peer.start("start", str(tmp_path / f"{peer.name}.run.toml"))
        swarm.until(lambda: min(len(turns_of(one)), len(turns_of(two))) >= 2, "turns", START_S)
        swarm.until(lambda: rounds_over_turns(two), "a round of several turns", ROUND_S)
        for counted, committed in rounds_over_turns(two):
            assert committed["contributed"] == [committed["sequences"]]
            assert committed["sequences"] >= max(counted, SLOW)
        turns = sorted([turn for peer in swarm.peers for turn in turns_of(peer)])
        assert all(a[1] <= b[0] for a, b in pairwise(turns)), "no two have the device at once"
        assert all(a[2] != b[2] for a, b in pairwise(turns)), "they alternate"

        swarm.until(lambda: told_of_turns(one)[-1]["event"] == "turn-began", "a turn", ROUND_S)
        assert one.kill() == []
        before = len(two.rounds)
        swarm.until(lambda: len(two.rounds) > before, "a round of the other", ROUND_S)
        shown = two.control.info()["device_turns"]["runs"]
        assert [(row["run"], row["turn"]) for row in shown] == [("two", "has the device")]
