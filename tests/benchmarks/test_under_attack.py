"""Benchmarks of attacks: their arithmetic, the share of an attacker, and one short run."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from programs import ROOT, event

from benchmarks.attacks.crowd import told_of_strangers
from benchmarks.attacks.share import Allowance, Family, hostile

NOTHING = {"run": "", "owner": "", "run_id": "", "peers": (), "dht": (), "doors": ()}


def test_an_attacker_runs_while_it_has_not_used_its_share() -> None:
    allowance = Allowance(share=0.5, saved_s=0.1)
    assert allowance.may_run(used_s=0.05, passed_s=0.1)
    assert not allowance.may_run(used_s=0.25, passed_s=0.2)
    assert not allowance.may_run(used_s=0.25, passed_s=0.1)
    assert allowance.may_run(used_s=0.25, passed_s=0.2)


def test_votes_and_parts_of_strangers_are_counted() -> None:
    honest = {"members": ["ann", "bob", "eve"], "contributed": [8, 8, 0]}
    log = [
        event(1, "round", head="a", voters=["ann", "bob"], **honest),
        event(2, "round", head="b", voters=["ann", "eve"], members=["eve"], contributed=[4]),
        event(3, "exchange-chosen", members=["ann", "eve"], shares=[1, 0]),
        event(4, "exchange-chosen", members=["ann", "eve"], shares=[1, 1]),
        event(5, "exchange-chosen", members=["ann", "eve"], shares=[]),
        event(6, "exchange-judged"),
    ]
    told = told_of_strangers([log, log[:1]], {"ann", "bob"})
    assert told == {
        "rounds": 2, "votes": 1, "counted": 1, "parts": 2, "exchanges": 3, "broken": 1,
    }  # fmt: skip


def test_a_stopped_program_goes_on_although_new_children_were_looked_for(tmp_path: Path) -> None:
    with hostile("attackers idle-burner", NOTHING, tmp_path, share=1000.0) as burner:
        family = Family(burner.family.first)
        for runs in (False, True):
            family.search()
            family.set_running(runs)
            assert family.is_stopped is not runs
        before = family.measure()
        while family.measure() == before:
            threading.Event().wait(0.01)


@pytest.mark.timeout(600)
def test_three_peers_under_attack(tmp_path: Path) -> None:
    attacks = ("messages",)
    program = [sys.executable, "-m", "benchmarks.attacks.run", "--quick"]
    done = subprocess.run(
        [*program, "--pass-seconds", "0.05", "--attacks", *attacks],
        cwd=ROOT, capture_output=True, text=True, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["attack"] for row in rows] == list(attacks)
    for row in rows:
        assert row["calm"] > 0
        assert row["crashes"] == 0
        assert sum(row["counts"].values()) > 0
