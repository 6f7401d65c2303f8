"""When something happens in the demo. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Cue(StrEnum):
    """What the demo does to the swarm."""

    KILL = "kill"
    """SIGKILL to one peer."""
    JOIN = "join"
    """A new peer."""


@dataclass(frozen=True)
class Scene:
    """How far the play is."""

    round: int
    """Last round that the founder committed."""
    rounds: int
    together: bool
    """Whether all the first peers had a part in one round."""
    killed: bool
    joined: bool


def cues(scene: Scene) -> tuple[Cue, ...]:
    """What is due now: the kill a quarter of the way in, the new peer halfway.

    A swarm that came together late is disturbed late: a peer that took no part is no loss.
    """
    due: list[Cue] = []
    if not scene.killed and scene.together and 4 * scene.round >= scene.rounds:
        due.append(Cue.KILL)
    if not scene.joined and 2 * scene.round >= scene.rounds:
        due.append(Cue.JOIN)
    return tuple(due)
