"""What may stand on top of a peer, as the peer sees it: each of them may be left out. The command
line plugs them in."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from atom.base.errors import ConfigError
from atom.base.events import EventSink
from atom.config.peer_file import Log, Metrics, PeerFile, Schedule
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
        """What nobody would see to is refused. Raises: UserError, and nothing is changed."""
        wished = {
            "schedule": peer.schedule != Schedule(),
            "metrics": peer.metrics != Metrics(),
            "log": peer.log != Log(),
        }
        for key, is_wished in wished.items():
            if is_wished:
                raise ConfigError(
                    f"{key}: this daemon was built without what sees to it",
                    "leave it out of the peer file, or install Atom with its extras",
                )

    def figures(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        """Ends what `keep_looking` began."""


OpenWishes = Callable[[PeerFile, Callable[[str], None], Callable[[BaseException], None]], Wishes]
"""The two hear why the peer is to stand still (empty: it is not), and with what a look fails.
Raises: UserError."""


@dataclass(frozen=True)
class Extensions:
    """How each is made. Nothing of it is started."""

    monitors: Callable[[PeerFile, ExitStack, Console], Monitors]
    """Takes ports and folders. Raises: UserError."""
    wishes: OpenWishes


def _no_monitors(peer: PeerFile, stack: ExitStack, console: Console) -> Monitors:
    Wishes().change(peer)
    return (), lambda info: None


NO_EXTENSIONS = Extensions(_no_monitors, lambda peer, told, failed: Wishes())
