"""Story of a history, in words short enough to read it whole: A Promise(ballot=3B, …)."""

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

from atom.swarm.chain.commit import Ballot, Head, MemberCount, Value, Vote, Voter

MOST_LINES = 4000
_DULL = {"incarnation", "signature", "loss_sum", "gradient_norm", "norm"}


@dataclasses.dataclass
class Story:
    """Lines of (time, who, what); formatted on demand only."""

    names: Mapping[str, str]
    """Peer id → name; may grow."""
    lines: deque[tuple[float, str, object]] = dataclasses.field(
        default_factory=lambda: deque(maxlen=MOST_LINES)
    )

    def add(self, time_s: float, who: str, what: object) -> None:
        self.lines.append((time_s, who, what))

    def text(self, most_lines: int) -> str:
        return "\n".join(
            f"{time_s:8.3f} {who}  {self.brief(what)}"
            for time_s, who, what in list(self.lines)[-most_lines:]
        )

    def brief(self, what: Any) -> str:
        match what:
            case bytes():
                return what.hex()[:4]
            case Voter() | MemberCount():
                count = f":{what.sequences}" if isinstance(what, MemberCount) else ""
                return f"{self.brief(what.peer_id)}{what.incarnation.hex()[:2]}{count}"
            case Vote(voter):
                return self.brief(voter)
            case Ballot(attempt, coordinator):
                return f"{attempt}{self.brief(coordinator)}"
            case Head():
                return f"{what.round}:{self.brief(what.digest)}"
            case Value():
                parts = f"{self.brief(what.contributions)} → {self.brief(what.voters_next)}"
                return f"{self.brief(what.digest())} on {self.brief(what.parent)} {parts}"
            case tuple() | frozenset() | list():
                return "[" + " ".join(map(self.brief, what)) + "]"
            case Mapping():
                return " ".join(f"{key}={self.brief(item)}" for key, item in what.items())
        if dataclasses.is_dataclass(what):
            told = [(f.name, getattr(what, f.name)) for f in dataclasses.fields(what)]
            told = [f"{name}={self.brief(item)}" for name, item in told if name not in _DULL]
            return f"{type(what).__name__}({', '.join(told)})"
        return self.names.get(what, what) if isinstance(what, str) else str(what)
