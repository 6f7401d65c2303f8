"""One line of the page."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    UNCHECKED = "not checked"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """One line."""

    topic: str
    level: Level
    said: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert bool(self.fix) == (self.level in (Level.WARNING, Level.FAILURE)), self.topic
