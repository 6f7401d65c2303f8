"""Claims as files: what is read back, who is gone, and what others may have written."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from atom.extras.turns.claims import CLAIM, WAITS, Claim, ClaimFile, neighbours

SAID = {
    "run": "one/a",
    "place": "/",
    "slot_s": 1.0,
    "turn": WAITS,
    "since_s": 0.0,
    "devices": ["cpu"],
}
WRONG = (
    *({"turn": "mine"}, {"slot_s": 0.0}, {"since_s": float("nan")}, {"slot_s": "x"}),
    {"devices": 3},
)
ONE = Claim("one/a", "/one", 600.0, WAITS, 1000.0, ("cpu",))
TWO = replace(ONE, run="two/a", place="/two")
DIES = f"""
import os, sys
from pathlib import Path
from atom.extras.turns.claims import ClaimFile
from atom.extras.turns.claims import Claim
file = ClaimFile(Path(sys.argv[1]))
file.look(lambda others: Claim("gone/a", "/gone", 1.0, {WAITS!r}, 0.0, ("cpu",)))
os._exit(0)
"""


def said(file: ClaimFile, claim: Claim) -> Mapping[str, Claim]:
    return file.look(lambda others: claim)


def test_each_sees_the_others(tmp_path: Path) -> None:
    one, two = ClaimFile(tmp_path / "cpu"), ClaimFile(tmp_path / "cpu")
    assert said(one, ONE) == {"": ONE}
    assert set(said(two, TWO).values()) == {ONE, TWO}
    changed = replace(ONE, since_s=2.0)
    said(one, changed)
    assert set(said(two, TWO).values()) == {changed, TWO}
    one.leave()
    assert said(two, TWO) == {"": TWO}
    two.leave()
    assert [path.name for path in (tmp_path / "cpu").iterdir()] == ["claims.lock"]


def test_who_died_is_gone(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], check=True, timeout=60)
    (left,) = tmp_path.glob(f"*{CLAIM}")
    file = ClaimFile(tmp_path)
    assert said(file, ONE) == {"": ONE}
    assert not left.exists()
    file.leave()


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{}", b"[1]", b"\xff", b"[" * 9000, b'{"process": 1}'),
        *(json.dumps(SAID | wrong).encode() for wrong in WRONG),
    ],
)
def test_who_holds_what_is_no_claim_may_have_the_device(text: bytes, tmp_path: Path) -> None:
    assert Claim.of(**SAID).place == "/", "rows are wrong in one key"
    file, odd = ClaimFile(tmp_path), tmp_path / f"odd{CLAIM}"
    odd.write_bytes(text)
    with odd.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError, match="is no claim"):
            said(file, ONE)
    assert said(file, ONE) == {"": ONE}
    assert not odd.exists()
    file.leave()


def test_an_own_claim_that_was_damaged_or_taken_away_is_written_again(tmp_path: Path) -> None:
    one, two = ClaimFile(tmp_path / "cpu"), ClaimFile(tmp_path / "cpu")
    said(one, ONE)
    [path] = (tmp_path / "cpu").glob(f"*{CLAIM}")
    path.write_bytes(b"\xff\xfe\x80")
    said(one, ONE)
    assert set(said(two, TWO).values()) == {ONE, TWO}
    shutil.rmtree(tmp_path / "cpu")
    said(one, ONE)
    assert set(said(two, TWO).values()) == {ONE, TWO}
    one.leave()
    two.leave()


def test_while_another_looks_nothing_changes(tmp_path: Path) -> None:
    one, two = ClaimFile(tmp_path), ClaimFile(tmp_path)
    with (tmp_path / "claims.lock").open("a+") as stuck:
        fcntl.flock(stuck, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            said(one, ONE)
    assert said(two, TWO) == {"": TWO}
    two.leave()


def test_neighbours_are_all_of_the_machine(tmp_path: Path) -> None:
    assert neighbours(tmp_path / "nowhere") == frozenset()
    one, two = ClaimFile(tmp_path), ClaimFile(tmp_path)
    said(one, ONE)
    said(two, replace(TWO, devices=("GPU-1",)))
    assert neighbours(tmp_path) == {os.getpid()}
    one.leave()
    two.leave()
    assert neighbours(tmp_path) == frozenset()
