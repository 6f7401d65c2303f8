"""What happened, in words short enough to read a whole history: A promised ballot 3B on 2:af01."""

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

from atom.swarm.chain.commit import Ballot, Commit, Contribution, Head, Value, Vote, Voter

MOST_LINES = 4000


@dataclasses.dataclass
class Story:
    """Lines of (time, who, what); told only when somebody asks."""

    names: Mapping[str, str]
    """Peer id → name; may grow."""
    lines: deque[tuple[float, str, object]] = dataclasses.field(
        default_factory=lambda: deque(maxlen=MOST_LINES)
    )

    def add(self, time_s: float, who: str, what: object) -> None:
        self.lines.append((time_s, who, what))

    def text(self, most_lines: int) -> str:
        return "\n".join(
            f"{time_s:8.3f} {who}  {self._brief(what)}"
            for time_s, who, what in list(self.lines)[-most_lines:]
        )

    def _brief(self, what: Any) -> str:
        match what:
            case bytes():
                return what.hex()[:4]
            case str():
                return self.names.get(what, what)
            case Voter() | Contribution() as part:
                count = f":{part.sequences}" if isinstance(part, Contribution) else ""
                return f"{self._brief(part.peer_id)}{part.incarnation.hex()[:2]}{count}"
            case Vote(voter):
                return self._brief(voter)
            case Ballot(attempt, coordinator):
                return f"{attempt}{self._brief(coordinator)}"
            case Head():
                return f"{what.round}:{self._brief(what.digest)}"
            case Value():
                parts = f"{self._brief(what.contributions)} → {self._brief(what.voters_next)}"
                return f"value {self._brief(what.digest())} on {self._brief(what.parent)} {parts}"
            case Commit():
                by = f"branch of {self._brief(what.survivors)}" if what.survivors else "quorum"
                return f"{self._brief(what.value)} by {by}: {self._brief(what.votes)}"
            case tuple() | frozenset() | list():
                return "[" + " ".join(self._brief(item) for item in what) + "]"
            case Mapping():
                return " ".join(f"{key}={self._brief(item)}" for key, item in what.items())
        if dataclasses.is_dataclass(what):
            fields = [(f.name, getattr(what, f.name)) for f in dataclasses.fields(what)]
            told = [f"{name}={self._brief(item)}" for name, item in fields if name not in _DULL]
            return f"{type(what).__name__}({', '.join(told)})"
        return str(what)


_DULL = {"incarnation", "signature", "loss_sum", "gradient_norm", "norm"}
