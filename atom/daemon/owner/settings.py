"""Changes of the peer file while the daemon runs (`atom reload`)."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from atom.base.errors import ConfigError
from atom.config.address import parse_host_port
from atom.config.load import NO_OPTIONS, Options, load_peer_file
from atom.config.peer_file import Network, PeerFile
from atom.daemon.owner.wishes import OwnersWishes
from atom.plan.devices import usable_threads
from atom.swarm.stream.bandwidth import Bandwidth

THREADS_UNLESS_TOLD = usable_threads()
"""Number of threads without a word of the owner, read before any peer file can change it."""
THREADS, CAPS = "device.cpu_threads", ("network.upload", "network.download")
OTHERS_LIVE = "network.per_month", "network.seed"


class Settings:
    """Settings of the peer file that is in force. Thread-safe."""

    def __init__(
        self,
        path: Path,
        peer: PeerFile,
        wishes: OwnersWishes,
        bandwidth: Bandwidth,
        on_worker: Callable[[Callable[[], None]], None],
        options: Options = NO_OPTIONS,
    ) -> None:
        """Store the parts that a changed peer file affects.

        Args:
            path: path of the peer file.
            peer: content of the peer file at the start of the daemon.
            wishes: conditions of the schedule.
            bandwidth: the line's limits.
            on_worker: runs a function on the thread that computes, between two passes.
            options: options of the command line, which replace keys of every content.
        """
        self._path, self._peer, self._lock = path, peer, threading.Lock()
        self._wishes, self._bandwidth = wishes, bandwidth
        self._on_worker, self._options = on_worker, options

    @property
    def network(self) -> Network:
        """Section [network] of the peer file that is in force."""
        return self._peer.network

    def reload(self) -> list[Mapping[str, Any]]:
        """Read the peer file again, and apply those changes that need no restart.

        Returns:
            One entry for each changed key: "key" is "section.key", "live" is False if the change
            needs a restart.

        Raises:
            UserError: the file is refused, and nothing was changed.
        """
        with self._lock:
            if not self._path.is_file():  # reading a pipe could block forever
                raise ConfigError(
                    f"{self._path}: not a regular file",
                    "write your peer file there, or restart with --peer and a permanent file",
                )
            peer = with_ports_in_use(load_peer_file(self._path, self._options), self._peer)
            changed = changed_keys(self._peer, peer)
            if any(map(_is_wish, changed)):
                self._wishes.change(peer)
            self._peer, network = peer, peer.network
            if {*changed} & {*CAPS}:
                self._bandwidth.change(network.upload_bits_per_s, network.download_bits_per_s)
            if THREADS in changed:
                threads = peer.device.cpu_threads or THREADS_UNLESS_TOLD
                self._on_worker(lambda: torch.set_num_threads(threads))
            return [{"key": key, "live": is_live(key)} for key in changed]


def with_ports_in_use(peer: PeerFile, before: PeerFile) -> PeerFile:
    """Return a peer file whose ports "any free one" are those that this process has chosen."""
    ports, chosen = dict[str, Any](), before.network
    if parse_host_port(peer.network.listen)[1] == 0:
        ports["listen"] = chosen.listen
    if peer.network.data_port == 0:
        ports["data_port"] = chosen.data_port
    return peer.model_copy(update={"network": peer.network.model_copy(update=ports)})


def is_live(key: str) -> bool:
    """Return True if a change of "section.key" takes effect without a restart."""
    return key in (THREADS, *CAPS, *OTHERS_LIVE) or _is_wish(key)


def _is_wish(key: str) -> bool:
    return key.startswith("schedule.")


def changed_keys(before: PeerFile, after: PeerFile) -> list[str]:
    """Return "section.key" of all keys whose values differ."""
    old, new = (peer.model_dump(by_alias=True) for peer in (before, after))
    return [
        f"{name}.{key}" for name in new for key in new[name] if new[name][key] != old[name][key]
    ]
