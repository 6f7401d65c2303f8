"""The way to a failure, a line for each move."""

from . import cast
from .cast import BallotKey
from .moves import Move
from .search import Verdict
from .state import Attempt, Survivors

_SAID = {"promise": "promises", "accept": "accepts the value of"}
_DONE = {"crash": "crashes", "leave": "is leaving", "goodbye": "says goodbye"}


def story(verdict: Verdict) -> str:
    """Numbered lines, and what is wrong at the end."""
    rounds = [record.head.round for record in verdict.ledger.heads]
    lives = [0] * len(cast.NAMES)
    lines = []
    for number, move in enumerate(verdict.way, 1):
        lines.append(f"{number:3}. {_line(move, rounds, lives)}")
        lives[move[1]] += move[0] == "restart"
    return "\n".join([*lines, f"     {verdict.trouble}"])


def _line(move: Move, rounds: list[int], lives: list[int]) -> str:
    """`lives`: how often each peer has been restarted."""
    kind, p, *rest = move
    who = cast.name((p, lives[p]))
    match kind, rest:
        case "start", [ballot, survivors]:
            return f"{who} starts {_ballot(ballot, survivors)}"
        case "ring", [Attempt() as attempt, members]:
            names = ", ".join(map(cast.name, members))
            return f"{who} proposes in {_of(attempt)}: the average of {names}"
        case "finish", [Attempt() as attempt, _]:
            return f"{who} proposes in {_of(attempt)}: what was accepted before"
        case (("promise" | "accept"), [Attempt() as attempt]):
            return f"{who} {_SAID[kind]} {_of(attempt)}"
        case "commit", [Attempt() as attempt]:
            votes = ", ".join(map(cast.name, attempt.votes))
            return f"{who} commits {_of(attempt)}, by the votes of {votes}"
        case "step", [Attempt() as attempt]:
            return f"{who} steps with {_of(attempt)}"
        case "fetch", [donor, head]:
            source = cast.name((donor, lives[donor]))
            return f"{who} fetches the state of {source}, at round {rounds[head]}"
        case "restart", [head]:
            return f"{who} restarts from its disk, at round {rounds[head]}"
    return f"{who} {_DONE[kind]}"


def _of(attempt: Attempt) -> str:
    return _ballot(attempt.ballot, attempt.survivors)


def _ballot(ballot: BallotKey, survivors: Survivors) -> str:
    name = f"{ballot[0]}{cast.name(ballot[1:])}"
    if survivors:
        return f"branch ballot {name} ({', '.join(map(cast.name, survivors))})"
    return f"ballot {name}"
