"""Interfaces of optional extensions of a peer: monitors and wishes. The command line plugs them
in."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from atom.base.events import EventSink
from atom.config.peer_file import PeerFile
from atom.daemon.console import Console

Info = Callable[[], Mapping[str, Any]]
"""Function that returns the figures of `atom info`."""
Monitors = tuple[Sequence[EventSink], Callable[[Info], None]]
"""Event sinks besides the log, and a function to call once the daemon exists."""


class Wishes:
    """Conditions under which the owner lets the machine work. This base class has none."""

    def keep_looking(self) -> None:
        """Check the conditions once, then again and again in the background."""

    def change(self, peer: PeerFile) -> None:
        """Use the conditions of this peer file from now on. Thread-safe."""

    def close(self) -> None:
        """Stop the checks that `keep_looking` began."""


OpenWishes = Callable[[PeerFile, Callable[[str], None], Callable[[BaseException], None]], Wishes]
"""Constructor of wishes. The first callback gets the reason to pause (empty: none), the second
callback gets the exception of a failed check. Raises: UserError."""


@dataclass(frozen=True)
class Extensions:
    """Constructors of the extensions; by default of extensions that do nothing."""

    monitors: Callable[[PeerFile, ExitStack, Console], Monitors] = lambda peer, stack, console: (
        (),
        lambda info: None,
    )
    """Function that takes the ports of monitors. Raises: UserError."""
    wishes: OpenWishes = lambda peer, told, failed: Wishes()


NO_EXTENSIONS = Extensions()
