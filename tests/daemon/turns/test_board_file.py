"""The board in its file: what is written is read, the dead are seen, damage says nothing."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from atom.daemon.turns.board import Account, Board, Claim, Turn, Wish
from atom.daemon.turns.board_file import BEAT_S, BoardBusy, BoardFile, PlaceTaken
from atom.daemon.turns.rules import looked
from atom.daemon.turns.shown import shown_runs

FULL = Board(
    claims={
        "a": Claim("one/owner", "/state/one", 2.0, 600.0, Wish.TRAINING, 5.0, True),
        "b": Claim("two/owner", "/state/two", 1.0, 60.0, Wish.SET_UP, 6.0),
    },
    accounts={"one/owner": Account(3.5, {0: 7.0, 59: 1.5}), "two/owner": Account(3.5)},
    turn=Turn("one/owner", 1.0, 2.0, 3.0, True),
    charged_at_s=6.0,
)

STRANGER = asdict(Claim("two/owner", "/state/two", 1.0, 60.0, Wish.TRAINING, 6.0))


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[BoardFile, BoardFile]]:
    files = BoardFile(tmp_path, "a", "boot"), BoardFile(tmp_path, "b", "boot")
    for file in files:
        file.enter()
    yield files
    for file in files:
        file.leave()


def seen(file: BoardFile, now: float = 6.0) -> tuple[Board, list[str]]:
    found: list[str] = []

    def look(board: Board, alive: object) -> Board:
        assert isinstance(alive, list)
        found.extend(alive)
        return board

    return file.look(look, now), found


def test_what_one_writes_the_other_reads(two: tuple[BoardFile, BoardFile]) -> None:
    one, other = two
    one.look(lambda board, alive: FULL, 6.0)
    assert seen(other) == (FULL, ["a", "b"])


def test_the_dead_are_seen(two: tuple[BoardFile, BoardFile], tmp_path: Path) -> None:
    one, other = two
    one.look(lambda board, alive: FULL, 6.0)
    one.leave()
    assert seen(other)[1] == ["b"]
    (tmp_path / "a.alive").touch()
    assert seen(other)[1] == ["b"], "a file that nobody holds is left behind by the killed"


def test_who_lives_is_seen_though_the_folder_was_taken_away(tmp_path: Path) -> None:
    before = BoardFile(tmp_path / "board", "a", "boot")
    before.enter()
    shutil.rmtree(tmp_path / "board")
    before.enter()
    later = BoardFile(tmp_path / "board", "b", "boot")
    later.enter()
    assert seen(later)[1] == []
    before.look(lambda board, alive: FULL, 6.0)
    assert seen(later)[1] == ["a", "b"]
    before.leave()
    assert seen(later)[1] == ["b"]
    later.leave()


def test_a_place_that_another_process_has_is_not_waited_for(tmp_path: Path) -> None:
    before, after = BoardFile(tmp_path, "a", "boot"), BoardFile(tmp_path, "a", "boot")
    before.enter()
    with pytest.raises(PlaceTaken, match=f"process {os.getpid()} has") as taken:
        after.enter()
    assert taken.value.process == str(os.getpid())
    before.leave()
    after.enter()
    after.leave()


def test_who_looks_too_often_does_not_write(
    two: tuple[BoardFile, BoardFile], tmp_path: Path
) -> None:
    one, other = two
    one.look(lambda board, alive: FULL, 6.0)
    looks = [(other, 7.0), (one, 6.9), (other, 7.9), (one, 5.0 + BEAT_S), (other, 6.0 + BEAT_S)]
    written = []
    for file, now in looks:
        before = (tmp_path / "board.json").stat().st_ino
        file.look(lambda board, alive: replace(board, charged_at_s=now), now)  # noqa: B023 - at once
        written.append((tmp_path / "board.json").stat().st_ino != before)
    assert written == [False, False, False, True, True]


def test_two_do_not_look_at_once(two: tuple[BoardFile, BoardFile], tmp_path: Path) -> None:
    with (tmp_path / "board.lock").open("a+") as looking:
        fcntl.flock(looking, fcntl.LOCK_EX)
        with pytest.raises(BoardBusy):
            seen(two[0])
    seen(two[0])


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"boot": "boot"}',
        '{"boot": "boot", "claims": {"a": {"run": 3}}, "accounts": {}, "turn": null}',
        '{"boot": "boot", "claims": {}, "accounts": {"r": 3}, "turn": null, "charged_at_s": 0}',
    ],
)
def test_a_damaged_board_is_begun_anew(
    damage: str, two: tuple[BoardFile, BoardFile], tmp_path: Path
) -> None:
    (tmp_path / "board.json").write_text(damage)
    assert seen(two[0])[0] == Board()


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("claims", "b", "seen_at_s"), "soon"),
        (("claims", "b", "share"), 0),
        (("claims", "b", "slot_s"), None),
        (("claims", "b", "slot_s"), float("nan")),
        pytest.param(("claims", "b", "share"), 10**400, id="too-large"),
        pytest.param(("claims", "x" * 300), STRANGER, id="too-long"),
        (("claims", "../b"), STRANGER),
        (("claims", "\0"), STRANGER),
        (("accounts",), {}),
        (("accounts", "one/owner", "virtual_s"), float("inf")),
        (("accounts", "one/owner", "minutes"), {"0": "long"}),
        (("turn", "since_s"), "then"),
        (("charged_at_s",), None),
    ],
)
def test_a_board_that_nobody_can_go_by_is_begun_anew(
    where: tuple[str, ...], value: object, two: tuple[BoardFile, BoardFile], tmp_path: Path
) -> None:
    """Of another version, or hostile: the daemons go on, and write it again."""
    one, other = two
    one.look(lambda board, alive: FULL, 6.0)
    said = json.loads((tmp_path / "board.json").read_text())
    place = said
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    (tmp_path / "board.json").write_text(json.dumps(said))

    claim = Claim("two/owner", "/state/two", 1.0, 60.0, Wish.TRAINING, 7.0)
    board = other.look(lambda board, alive: looked(board, "b", claim, alive, 7.0), 7.0)
    assert shown_runs(board, 7.0)
    assert list(board.claims) == ["b"]


def test_a_board_from_before_the_machine_started_again_says_nothing(tmp_path: Path) -> None:
    before, after = BoardFile(tmp_path, "a", "before"), BoardFile(tmp_path, "a", "after")
    before.enter()
    before.look(lambda board, alive: FULL, 6.0)
    assert json.loads((tmp_path / "board.json").read_text())["claims"]
    before.leave()
    after.enter()
    assert seen(after)[0] == Board()
    after.leave()
