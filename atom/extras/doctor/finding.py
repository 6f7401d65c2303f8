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
    """`fix`: a command or a key, for what is not as it should be."""

    topic: str
    level: Level
    said: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert bool(self.fix) == (self.level in (Level.WARNING, Level.FAILURE)), self.topic


def ok(topic: str, said: str) -> Finding:
    return Finding(topic, Level.OK, said)


def unchecked(topic: str, said: str) -> Finding:
    return Finding(topic, Level.UNCHECKED, said)


def warning(topic: str, said: str, fix: str) -> Finding:
    return Finding(topic, Level.WARNING, said, fix)


def failure(topic: str, said: str, fix: str) -> Finding:
    return Finding(topic, Level.FAILURE, said, fix)
