"""What this box gives, changed while the daemon runs: `atom set`."""

import contextlib
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atom.base.errors import ConfigError, ControlError
from atom.config.load import parse_peer_text
from atom.config.peer_file import PeerFile
from atom.config.peer_text import (
    all_keys,
    changed_keys,
    default_text,
    edited,
    parse_assignment,
    written,
)
from atom.daemon.extensions import Turns, Wishes
from atom.daemon.fitting.memory_caps import MemoryCaps
from atom.daemon.state_directory import write_atomically
from atom.swarm.stream.bandwidth import Bandwidth

THREADS_UNLESS_TOLD = torch.get_num_threads()
"""PyTorch's own choice: this is read before any peer file is."""
POWER, THREADS, CAPS = "device.power", "device.cpu_threads", ("network.upload", "network.download")
MEMORY = ("device.memory", "host.memory")
SLOT = "device.slot"
Setting = Mapping[str, Any]


@dataclass(frozen=True)
class Givers:
    """Who gives what can be set: of the machine, and of this process."""

    wishes: Wishes
    turns: Turns
    bandwidth: Bandwidth
    memory: MemoryCaps
    on_worker: Callable[[Callable[[], None]], None]
    """Runs a command between two passes, on the thread that computes."""


@dataclass(frozen=True)
class PeerPlace:
    """Where a peer file is."""

    path: Path
    kept: bool
    """In the state directory, by ourselves: it is there once something was set."""


class Settings:
    """The peer file in force. `set` may be called from several threads."""

    def __init__(self, place: PeerPlace, peer: PeerFile, givers: Givers) -> None:
        self._path, self._kept = place.path, place.kept
        self._peer, self._givers = peer, givers
        self._lock = threading.Lock()

    def close(self) -> None:
        """No change of memory is waited for any more."""
        self._givers.memory.close()

    def set(self, assignments: Sequence[str]) -> list[Setting]:
        """See `atom.daemon.control.Controllable`."""
        if not assignments:
            text = self._text()
            return [self._setting(key, text) for key in all_keys()]
        with self._alone():
            wanted = [parse_assignment(each) for each in assignments]
            text = self._text()
            changed = edited(text, wanted, str(self._path))
            peer = parse_peer_text(changed, self._path.parent, self._path.name)
            self._refuse_moving_away(peer)
            self._put_in_force(peer, lambda: self._replace(text, changed))
            return [self._setting(key, changed) for key, _ in wanted]

    @property
    def doing(self) -> str:
        """What a `set` under way is at, if it takes long. From any thread."""
        return self._givers.memory.doing

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """A change may take a minute. Whoever waited for another would keep one of the few threads
        that `atom pause` and `atom leave` need. Raises: ControlError."""
        if not self._lock.acquire(blocking=False):
            raise ControlError(
                "another change is under way" + (f": {self.doing}" if self.doing else ""),
                "say it again once that one is through",
            )
        try:
            yield
        finally:
            self._lock.release()

    def _text(self) -> str:
        """Of the file as it is now: somebody may have edited it. Raises: ConfigError."""
        try:
            if not stat.S_ISREG(self._path.stat().st_mode):  # a pipe would be waited for, for ever
                raise ConfigError(
                    f"{self._path}: no plain file, so nothing is read from it again",
                    "start again with --peer and a file that stays",
                )
            return self._path.read_bytes().decode("utf-8")  # its ends of lines as they are
        except FileNotFoundError:
            if self._kept:
                return ""
            raise ConfigError(
                f"{self._path}: no such file any more", "put it back, or start again without --peer"
            ) from None
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(
                f"{self._path}: cannot be read: {problem}", "check its rights, and that it is text"
            ) from None

    def _setting(self, key: str, text: str) -> Setting:
        """Raises: ConfigError for a text that is no TOML."""
        value = written(text, key, str(self._path))
        return {
            "key": key,
            "value": value or default_text(key),
            "default": not value,
            "live": is_live(key),
        }

    def _refuse_moving_away(self, peer: PeerFile) -> None:
        if peer.state.directory is not None and self._kept:
            raise ConfigError(
                "state.directory: this peer file lies in the state directory itself",
                "write a peer file elsewhere, and start with --peer FILE",
            )

    def _replace(self, text: str, by: str) -> None:
        """Memory may have taken a minute, in which somebody edited the file: what they wrote stays.
        Raises: ConfigError, StorageError."""
        if self._text() != text:
            raise ConfigError(
                f"{self._path}: somebody else changed it meanwhile", "nothing was set; say it again"
            )
        _write(self._path, by)

    def _put_in_force(self, peer: PeerFile, write: Callable[[], None]) -> None:
        """What may be refused comes first, then the file, then the rest. Raises: UserError."""
        before, changed, givers = self._peer, changed_keys(self._peer, peer), self._givers
        with contextlib.ExitStack() as undo:
            if changed & set(MEMORY):
                givers.memory.change(peer)
                undo.callback(givers.memory.change, before)
            if any(_is_wish(key) for key in changed):
                givers.wishes.change(peer)
                undo.callback(givers.wishes.change, before)
            write()
            undo.pop_all()
        self._peer = peer
        if changed & set(CAPS):
            network = peer.network
            givers.bandwidth.change(network.upload_bits_per_s, network.download_bits_per_s)
        if THREADS in changed:
            threads = peer.device.cpu_threads or THREADS_UNLESS_TOLD
            givers.on_worker(lambda: torch.set_num_threads(threads))
        if SLOT in changed:
            givers.turns.retune(peer.device)


def is_live(key: str) -> bool:
    """Whether a change is in force without a restart."""
    return key in (THREADS, *CAPS, *MEMORY, SLOT) or _is_wish(key)


def _is_wish(key: str) -> bool:
    return key == POWER or key.startswith("schedule.")


def _write(path: Path, text: str) -> None:
    """Where a link leads to, with the rights that it had. Raises: StorageError."""
    target = path.resolve()
    mode = target.stat().st_mode if target.exists() else None
    write_atomically(target, text.encode())
    if mode is not None:
        target.chmod(mode)
