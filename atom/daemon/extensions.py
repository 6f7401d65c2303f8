"""What may stand on top of a peer, as the peer sees it: each of them may be left out. The command
line plugs them in."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from atom.base.events import EventSink
from atom.config.peer_file import PeerFile
from atom.daemon.console import Console

Info = Callable[[], Mapping[str, Any]]
"""What `atom info` shows."""
Monitors = tuple[Sequence[EventSink], Callable[[Info], None]]
"""Who else hears of a daemon's events than its log, and what is called once there is a daemon."""


class Wishes:
    """When the machine's owner lets it work; here: whenever."""

    def keep_looking(self) -> None:
        """Looks for the first time before it returns."""

    def change(self, peer: PeerFile) -> None:
        """What `peer` wishes holds from now on."""

    def close(self) -> None:
        """Ends what `keep_looking` began."""


OpenWishes = Callable[[PeerFile, Callable[[str], None], Callable[[BaseException], None]], Wishes]
"""The two hear why the peer is to stand still (empty: it is not), and with what a look fails.
Raises: UserError."""


@dataclass(frozen=True)
class Extensions:
    """How each is made, nothing of it started; here: none does anything."""

    monitors: Callable[[PeerFile, ExitStack, Console], Monitors] = lambda peer, stack, console: (
        (),
        lambda info: None,
    )
    """Takes ports and folders. Raises: UserError."""
    wishes: OpenWishes = lambda peer, told, failed: Wishes()


NO_EXTENSIONS = Extensions()
