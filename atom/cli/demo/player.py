"""A peer in the play: its process, its state directory, what it wrote down, what became of it."""

from pathlib import Path

from atom.cli.demo.actor import Actor
from atom.cli.demo.record import EventTail
from atom.cli.demo.stage import Stage
from atom.cli.demo.verdict import FINISHED
from atom.daemon.own_identity import own_identity
from atom.daemon.state_directory import StateDirectory


class Player:
    """Peer `number` of the demo; the first is the founder."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.name = f"peer {number}"
        self.state: Path = stage.state(number)
        self.actor = Actor(self.name, stage.log(number))
        self.tail = EventTail(StateDirectory(self.state).events)
        self.fate = ""
        """Empty while it lives."""
        self.entered = False
        """Whether the swarm has seen it ready to train."""
        self._peer_id = ""

    @property
    def title(self) -> str:
        """The name, and the fate of one that met it."""
        return f"{self.name} ({self.fate})" if self.fate else self.name

    @property
    def is_alive(self) -> bool:
        return not self.fate

    @property
    def peer_id(self) -> str:
        """Empty until its key is on disk."""
        if not self._peer_id and (found := own_identity(self.state)) is not None:
            self._peer_id = found.peer_id
        return self._peer_id

    def check(self) -> None:
        """Notices a finished process. Raises: ActorFailed if it did not end as it should."""
        code = self.actor.exit_code
        if not self.is_alive or code is None:
            return
        if code != 0:
            self.fate = f"failed ({code})"
            raise self.actor.failure(f"ended with exit code {code}")
        self.fate = FINISHED
