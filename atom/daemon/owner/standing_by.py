"""A peer whose month's allowance is used up, before it takes any memory: it waits for the next
month, or for another allowance, and answers its owner meanwhile."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from atom.base.errors import ControlError
from atom.config.load import load_peer_file
from atom.config.peer_file import PeerFile
from atom.daemon.owner.settings import changed_keys
from atom.daemon.owner.traffic import Traffic, kept_traffic

LOOK_S = 2.0
STANDING_BY = "standing by"
"""In place of a state of `PeerState`."""


class StandBy:
    """What the control API asks (`atom.daemon.control.Controllable`), and the wait itself."""

    def __init__(
        self,
        facts: Mapping[str, Any],
        peer: PeerFile,
        peer_file: Path,
        kept: Path,
        wall: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`facts`: what `info` shows besides. `kept`: where the line's bytes are written."""
        self._facts, self.peer, self._peer_file = facts, peer, peer_file
        self._kept, self._wall = kept, wall
        self._news = threading.Event()
        self.leaves = False
        """Its owner ended the wait."""

    @property
    def traffic(self) -> Traffic:
        """Nothing is added to it meanwhile."""
        kept = kept_traffic(self._kept, self._wall())
        return replace(kept, per_month=self.peer.network.per_month_bytes)

    def wait(self) -> None:
        """Until there is something left, or its owner has it leave."""
        while self.traffic.why_not and not self.leaves:
            self._news.wait(LOOK_S)
            self._news.clear()

    # ---- from any thread

    def info(self) -> Mapping[str, Any]:
        """Fewer keys than a peer that trains."""
        traffic = self.traffic
        told = {"state": STANDING_BY, "paused": traffic.why_not or None}
        return {**self._facts, **told, "traffic": traffic.to_json()}

    def leave(self, deadline_s: float | None) -> str:
        self.leaves = True
        self._news.set()
        return "ending: nothing was counted"

    def reload(self) -> Sequence[Mapping[str, Any]]:
        """Raises: UserError; then nothing is changed."""
        before, self.peer = self.peer, load_peer_file(self._peer_file)
        self._news.set()
        changed = changed_keys(before, self.peer)
        return [{"key": key, "live": True, "costs": ""} for key in changed]

    def pause(self) -> str:
        self._refuse()

    def resume(self) -> str:
        self._refuse()

    def trace(self, ticket: int) -> tuple[int, Sequence[Mapping[str, Any]], str]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ControlError(
            f"this peer stands by: {self.traffic.why_not}",
            "raise [network] per_month in its peer file, then `atom reload`; `atom leave` ends it",
        )
