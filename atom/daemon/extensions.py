"""What may stand on top of a peer, as the peer sees it: each of them may be left out. The command
line plugs them in."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from atom.base.clock import Clock
from atom.base.errors import ConfigError
from atom.base.events import EventSink
from atom.config.peer_file import Device, Log, Metrics, PeerFile, Schedule
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


class Seat(Protocol):
    """The part of `atom.daemon.owner.pauses.Pauses` that turns need."""

    def give_device(self, holder: str) -> bool: ...
    def take_device(self) -> None: ...


class Trainer(Protocol):
    """The part of `atom.daemon.peer.peer.Peer` that turns need. Called from any thread."""

    def wants_device(self) -> bool: ...
    def counted(self) -> int: ...
    def fail(self, failure: BaseException) -> None: ...


class Turns:
    """Several runs on one device, one at a time; here: there is one run."""

    def begin(self, note: Callable[[str], None]) -> None:
        """Returns when the device may be set up."""

    def serve(self, seat: Seat, trainer: Trainer, events: EventSink) -> None:
        """It is set up: from now on turns come and go."""

    def retune(self, terms: Device) -> None:
        """Other slots hold from now on."""

    def end_of_round(self) -> None:
        """Nothing is counted now, and no pass runs."""

    def figures(self) -> Mapping[str, Any]:
        return {"device": "", "runs": []}

    def close(self) -> None:
        """The device is free for the others."""


@dataclass(frozen=True)
class Extensions:
    """How each is made. Nothing of it is started."""

    monitors: Callable[[PeerFile, ExitStack, Console], Monitors]
    """Takes ports and folders. Raises: UserError."""
    turns: Callable[[Device, Path, str, str, Clock], Turns]
    """Of a state directory, a run and its owner."""
    wishes: OpenWishes


def _no_monitors(peer: PeerFile, stack: ExitStack, console: Console) -> Monitors:
    Wishes().change(peer)
    return (), lambda info: None


NO_EXTENSIONS = Extensions(
    monitors=_no_monitors,
    turns=lambda device, state, run, owner, clock: Turns(),
    wishes=lambda peer, told, failed: Wishes(),
)
