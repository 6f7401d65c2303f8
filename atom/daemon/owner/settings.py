"""What this box gives, changed while the daemon runs: the peer file is read again."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from atom.base.errors import ConfigError
from atom.config.load import load_peer_file
from atom.config.peer_file import Network, PeerFile
from atom.daemon.extensions import Wishes
from atom.swarm.stream.bandwidth import Bandwidth

THREADS_UNLESS_TOLD = torch.get_num_threads()
"""PyTorch's own choice: this is read before any peer file is."""
THREADS, CAPS = "device.cpu_threads", ("network.upload", "network.download")
ALLOWANCE = "network.per_month"


class Settings:
    """The peer file in force. `reload` may be called from several threads."""

    def __init__(
        self,
        path: Path,
        peer: PeerFile,
        wishes: Wishes,
        bandwidth: Bandwidth,
        on_worker: Callable[[Callable[[], None]], None],
    ) -> None:
        """`peer`: what is in `path`; `on_worker`: runs a command between two passes, on the thread
        that computes. All but the path give what can change."""
        self._path, self._peer, self._lock = path, peer, threading.Lock()
        self._wishes, self._bandwidth = wishes, bandwidth
        self._on_worker = on_worker

    @property
    def network(self) -> Network:
        """As it is now."""
        return self._peer.network

    def reload(self) -> list[Mapping[str, Any]]:
        """`key` of what has changed, and whether that is `live`. Raises: UserError; then nothing is
        changed."""
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
        changed, network = set(keys), peer.network
        if any(_is_wish(key) for key in changed):
            self._wishes.change(peer)
        self._peer = peer
        if changed & set(CAPS):
            self._bandwidth.change(network.upload_bits_per_s, network.download_bits_per_s)
        if THREADS in changed:
            threads = peer.device.cpu_threads or THREADS_UNLESS_TOLD
            self._on_worker(lambda: torch.set_num_threads(threads))


def is_live(key: str) -> bool:
    """Whether a change is in force without a restart."""
    return key in (THREADS, *CAPS, ALLOWANCE) or _is_wish(key)


def _is_wish(key: str) -> bool:
    return key.startswith("schedule.")


def changed_keys(before: PeerFile, after: PeerFile) -> list[str]:
    """ "section.key" of everything whose value differs."""
    old, new = (peer.model_dump(by_alias=True) for peer in (before, after))
    return [
        f"{name}.{key}" for name in new for key in new[name] if new[name][key] != old[name][key]
    ]
