"""What people see of the turns on a device. Pure."""

from collections.abc import Mapping
from typing import Any

from atom.daemon.turns.board import Board, Claim, Wish
from atom.daemon.turns.rules import is_frozen

STANDINGS = _HAS_IT, _WAITS, _NOT_NOW, _FROZEN = "has the device", "waits", "not now", "frozen"
"""What `turn` of a row may be."""


def shown_runs(board: Board, now: float) -> list[Mapping[str, Any]]:
    """A row per daemon, for `atom info`."""
    claims = sorted(board.claims.values(), key=lambda claim: (claim.run, claim.place))
    return [_row(board, claim, now) for claim in claims]


def own_row(info: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Of what `atom info` shows, the row of that daemon; None: it has not looked yet."""
    rows = info["device_turns"]["runs"]
    place = info["state_directory"]
    return next((row for row in rows if row["state_directory"] == place), None)


def _row(board: Board, claim: Claim, now: float) -> Mapping[str, Any]:
    name, _, owner = claim.run.partition("/")
    return {
        "run": name,
        "owner": owner,
        "share": claim.share,
        "slot_s": claim.slot_s,
        "turn": _standing(board, claim, now),
        "left_s": _left_s(board, claim, now),
        "last_hour_s": round(board.accounts[claim.run].last_hour_s(now), 1),
        "state_directory": claim.place,
    }


def _standing(board: Board, claim: Claim, now: float) -> str:
    if is_frozen(claim, now):
        return _FROZEN
    if claim.holds:
        return _HAS_IT
    return _NOT_NOW if claim.wish is Wish.NOTHING else _WAITS


def _left_s(board: Board, claim: Claim, now: float) -> float | None:
    """Of its turn: 0: it ends with the round. None: it has none, or nobody waits for it to end."""
    turn = board.turn
    if turn is None or turn.run != claim.run or not claim.holds:
        return None
    others = {c.run for c in board.claims.values() if c.wish is not Wish.NOTHING} - {claim.run}
    return round(max(turn.ends_s - now, 0.0), 1) if others else None
