"""Whose turn on the device it is, and for how long: weighted fair time slots. Pure.

Every daemon applies `looked` to the one board of its device, in turn, so all see the same decision.

Runs that want the device get slots as long as their shares, one after the other; the next is always
the one with the fewest device seconds by share. A slot that took longer than planned, because it
ends with a round, is charged in full: over time the seconds are as the shares. Who does not want
the device keeps the right to one slot at most, and who comes new begins level with the others:
nobody saves up. (Start-time fair queueing, Goyal, Vin and Cheng 1996, with slots for packets.)
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import Enum, auto

from atom.daemon.turns.board import Account, Board, Claim, Turn, Wish

FROZEN_S = 30.0
"""Who has not looked for so long stands still, whatever it holds."""
AWAKE_S = 5.0
"""Whoever did not look for longer itself, judges nobody: the machine slept."""
TAKE_UP_S = 10.0
"""Within which a turn that was granted is taken up."""
_FIRST, _NEW, _USUAL = range(3)


class Standing(Enum):
    """What the board says to one daemon."""

    MAY = auto()
    WAITS = auto()
    YIELDS = auto()


def looked(board: Board, me: str, claim: Claim, alive: Collection[str], now: float) -> Board:
    """The board after `me` looked at it and said `claim`. `alive`: members whose process lives."""
    mine = board.claims.get(me)
    awake = mine is not None and now - mine.seen_at_s <= AWAKE_S
    claims = {
        member: _unless_frozen(each, now) if awake else each
        for member, each in board.claims.items()
        if member in alive
    }
    board = replace(board, claims={**claims, me: claim})
    return _scheduled(_levelled(_charged(board, now)), now)


def left(board: Board, me: str, now: float) -> Board:
    """The board without `me`."""
    others = {member: claim for member, claim in board.claims.items() if member != me}
    return _scheduled(_levelled(_charged(replace(board, claims=others), now)), now)


def standing(board: Board, me: str, now: float, round_ended: bool) -> Standing:
    """What follows for `me`, whose claim is on the board."""
    claim, turn = board.claims[me], board.turn
    if turn is None or turn.run != claim.run:
        return Standing.YIELDS if claim.holds else Standing.WAITS
    if turn.asked_at_s is None:
        return Standing.MAY
    if not claim.holds:
        return Standing.WAITS
    if claim.wish is Wish.SET_UP:
        return Standing.MAY
    late = turn.at_once or now >= turn.asked_at_s + _shortest_slot_s(board, turn.run)
    return Standing.YIELDS if round_ended or late or claim.wish is Wish.NOTHING else Standing.MAY


def is_frozen(claim: Claim, now: float) -> bool:
    return now - claim.seen_at_s > FROZEN_S


def wanting(board: Board) -> list[str]:
    """The runs that want the device, in a fixed order."""
    return sorted({c.run for c in board.claims.values() if c.wish is not Wish.NOTHING})


def slot_s(board: Board, run: str) -> float:
    """How long a turn of `run` is among those that want one now."""
    runs = sorted({*wanting(board), run})
    shares = {each: _share(board, each) for each in runs}
    whole = _shortest_slot_s(board, run) * len(runs)
    return whole * shares[run] / sum(shares.values())


def _shortest_slot_s(board: Board, run: str) -> float:
    """As the one with the least patience wishes, of those that want the device, and of `run`."""
    runs = {*wanting(board), run}
    return min(claim.slot_s for claim in board.claims.values() if claim.run in runs)


def _unless_frozen(claim: Claim, now: float) -> Claim:
    return replace(claim, wish=Wish.NOTHING, holds=False) if is_frozen(claim, now) else claim


def _charged(board: Board, now: float) -> Board:
    """The time since somebody last looked goes to the run that has the device."""
    turn, accounts = board.turn, board.accounts
    if turn is not None and any(claim.holds for claim in board.of_run(turn.run)):
        seconds = min(max(now - board.charged_at_s, 0.0), FROZEN_S)
        account = accounts[turn.run].charged(seconds, _share(board, turn.run), now)
        accounts = {**accounts, turn.run: account}
    return replace(board, accounts=accounts, charged_at_s=now)


def _levelled(board: Board) -> Board:
    """Newcomers begin with what the next in line has, who is absent is behind by one slot at most.
    Runs without a daemon are forgotten, but not what they had before others: who ends and comes
    again and again is new each time, and would be charged for nothing."""
    there = {claim.run for claim in board.claims.values()}
    known = {run: account for run, account in board.accounts.items() if run in there}
    want = wanting(board)
    heads = [known[run].virtual_s for run in want if run in known]
    level = min(heads, default=max((each.virtual_s for each in known.values()), default=0.0))
    owing = (run for run, account in board.accounts.items() if account.virtual_s > level)
    accounts = {run: board.accounts[run] for run in owing} if there else {}
    for run in there:
        account = known.get(run, Account(level))
        least = level - max(claim.slot_s for claim in board.of_run(run))
        if run not in want and account.virtual_s < least:
            account = replace(account, virtual_s=least)
        accounts[run] = account
    return replace(board, accounts=accounts)


def _scheduled(board: Board, now: float) -> Board:
    turn = board.turn
    if turn is not None and not _is_free(board, turn, now):
        return replace(board, turn=_continued(board, turn, now))
    following = _next(board, wanting(board))
    if following is None:
        return replace(board, turn=None)
    return replace(board, turn=Turn(following, now, now + slot_s(board, following)))


def _continued(board: Board, turn: Turn, now: float) -> Turn:
    """The same turn, with what is asked of it now: nothing, if nobody else is next."""
    following = _next(board, wanting(board))
    ends_s = turn.since_s + slot_s(board, turn.run)
    going_on = Turn(turn.run, turn.since_s, ends_s)
    if following is None:
        return going_on
    if following == turn.run:
        return replace(going_on, ends_s=max(ends_s, now + _behind_s(board, turn.run)))
    urgency = _urgency(board, following)
    if urgency == _USUAL and now < ends_s and not _is_idle(board, turn.run):
        return going_on
    asked_at_s = now if turn.asked_at_s is None else turn.asked_at_s
    return replace(going_on, asked_at_s=asked_at_s, at_once=urgency == _FIRST)


def _next(board: Board, runs: Iterable[str]) -> str | None:
    """Of equals, not the one whose turn it is."""

    def rank(run: str) -> tuple[int, float, bool, str]:
        has_it = board.turn is not None and board.turn.run == run
        return _urgency(board, run), board.accounts[run].virtual_s, has_it, run

    return min(runs, key=rank, default=None)


def _behind_s(board: Board, run: str) -> float:
    """How long it may go on until the next in line has no more by share; at most a slot."""
    others = [board.accounts[each].virtual_s for each in wanting(board) if each != run]
    own = board.accounts[run].virtual_s
    behind_s = (min(others, default=own) - own) * _share(board, run)
    return min(max(behind_s, 0.0), slot_s(board, run))


def _urgency(board: Board, run: str) -> int:
    """Who is set up again and again comes no sooner than its share allows."""
    wishes = {claim.wish for claim in board.of_run(run)}
    if Wish.LEAVING in wishes:
        return _FIRST
    others = [board.accounts[each].virtual_s for each in wanting(board) if each != run]
    is_due = board.accounts[run].virtual_s <= min(others, default=0.0)
    return _NEW if Wish.SET_UP in wishes and is_due else _USUAL


def _is_free(board: Board, turn: Turn, now: float) -> bool:
    """Nobody has the device by this turn any more, or took it up."""
    if any(claim.holds for claim in board.of_run(turn.run)):
        return False
    given_back = turn.asked_at_s is not None or _is_idle(board, turn.run)
    return given_back or now - turn.since_s > TAKE_UP_S


def _is_idle(board: Board, run: str) -> bool:
    return all(claim.wish is Wish.NOTHING for claim in board.of_run(run))


def _share(board: Board, run: str) -> float:
    return max(claim.share for claim in board.of_run(run))
