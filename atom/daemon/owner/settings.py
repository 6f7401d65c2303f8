"""What this box gives, changed while the daemon runs: the peer file is read again."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atom.base.errors import ConfigError
from atom.config.load import load_peer_file
from atom.config.peer_file import PeerFile, changed_keys
from atom.daemon.extensions import Turns, Wishes
from atom.swarm.stream.bandwidth import Bandwidth

THREADS_UNLESS_TOLD = torch.get_num_threads()
"""PyTorch's own choice: this is read before any peer file is."""
POWER, THREADS, CAPS = "device.power", "device.cpu_threads", ("network.upload", "network.download")
SLOT = "device.slot"


@dataclass(frozen=True)
class Givers:
    """Who gives what can change: of the machine, and of this process."""

    wishes: Wishes
    turns: Turns
    bandwidth: Bandwidth
    on_worker: Callable[[Callable[[], None]], None]
    """Runs a command between two passes, on the thread that computes."""


class Settings:
    """The peer file in force. `reload` may be called from several threads."""

    def __init__(self, path: Path, peer: PeerFile, givers: Givers) -> None:
        """`peer`: what is in `path`."""
        self._path, self._peer, self._givers = path, peer, givers
        self._lock = threading.Lock()

    def reload(self) -> list[Mapping[str, Any]]:
        """See `atom.daemon.control.Controllable`."""
        with self._lock:
            if not self._path.is_file():  # a pipe would be waited for, for ever
                raise ConfigError(
                    f"{self._path}: no such file, or no plain one",
                    "write your peer file there, or start again with --peer and a file that stays",
                )
            peer = load_peer_file(self._path)
            changed = changed_keys(self._peer, peer)
            self._put_in_force(peer, changed)
            return [{"key": key, "live": is_live(key)} for key in changed]

    def _put_in_force(self, peer: PeerFile, keys: list[str]) -> None:
        """What may be refused comes first, then the rest. Raises: UserError; then nothing is
        changed."""
        changed, givers = set(keys), self._givers
        if any(_is_wish(key) for key in changed):
            givers.wishes.change(peer)
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
    return key in (THREADS, *CAPS, SLOT) or _is_wish(key)


def _is_wish(key: str) -> bool:
    return key == POWER or key.startswith("schedule.")
