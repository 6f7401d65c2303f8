"""What this peer offers others to catch up from.

    chain/<head>      the commits from genesis to that head, as bytes
    chain/<head>/<n>  those after round n
    snapshots         which states are offered: a JSON list of [round, head]
    state/<head>      a state's arenas, read from a snapshot file
    result/<digest>   one averaged gradient

Only immutable things are offered, from files or copies: a joiner never sees a half-made step, and
never makes anybody wait. A result that was accepted and not committed is offered from memory: it is
wanted at once, by those who are to vote for it, and may never be worth a file.
"""

import contextlib
import json
import re
import threading
from collections import deque
from collections.abc import Sequence, Set

from atom.base.errors import StorageError
from atom.swarm.chain.commit_chain import chain_name
from atom.swarm.state.arena_sources import FileBytes
from atom.swarm.state.blobs import BlobStore
from atom.training.storage.journal import Journal
from atom.training.storage.results import Results
from atom.training.storage.snapshot import Snapshot

KEPT_CHAINS = 8
"""A reader may have learned our head from a lease that is some rounds old."""
MAX_OFFERS = 64
IN_USE_S = 60.0
SNAPSHOTS = "snapshots"
_CHAIN_SINCE = re.compile("chain/([0-9a-f]{64})/([0-9]{1,12})")


class Shelf:
    """Keeps the blob shelf in step with the journal, the results and the snapshots."""

    def __init__(self, blobs: BlobStore, journal: Journal, results: Results) -> None:
        self._blobs = blobs
        self._journal = journal
        self._results = results
        self._chains: deque[str] = deque()
        self._states: set[str] = set()
        self._in_memory: set[str] = set()
        """Results that are served from there."""
        self._lock = threading.Lock()
        """Results are offered by more than one thread."""
        blobs.resolve_others(self._chain_since)

    def announce_chain(self) -> None:
        """After each change of the journal: offers its chain and the results on disk."""
        name = chain_name(self._journal.head.digest)
        file = self._journal.file
        if file is not None:
            self._blobs.register(name, FileBytes(*file))
            if name not in self._chains:
                self._chains.append(name)
        while len(self._chains) > KEPT_CHAINS:
            self._blobs.remove(self._chains.popleft())
        self.announce_results()

    def _chain_since(self, name: str) -> FileBytes | None:
        match = _CHAIN_SINCE.fullmatch(name)
        if match is None or f"chain/{match[1]}" not in self._chains:
            return None
        found = self._journal.file_between(int(match[2]), bytes.fromhex(match[1]))
        return None if found is None else FileBytes(found[0], found[2], found[1])

    def announce_snapshots(self, snapshots: Sequence[Snapshot]) -> None:
        """Offers exactly these states."""
        names = set()
        for snapshot in snapshots:
            name = f"state/{snapshot.head.hex()}"
            names.add(name)
            if name not in self._states:
                self._blobs.register(name, snapshot.path, snapshot.head, snapshot.round)
        for gone in self._states - names:
            self._blobs.remove(gone)
        self._states = names
        listed = json.dumps([[s.round, s.head.hex()] for s in snapshots])
        self._blobs.register(SNAPSHOTS, listed.encode())
        self.announce_results()

    def heads_in_use(self) -> set[bytes]:
        """Of the states that somebody is fetching from us."""
        read = self._blobs.read_lately(IN_USE_S)
        return {bytes.fromhex(name.removeprefix("state/")) for name in read & self._states}

    def offer_result(self, digest: bytes) -> None:
        """From memory, until the round is over, if it is held and not offered yet. From any
        thread; does not wait for the disk."""
        name = _result_name(digest)
        with self._lock:
            result = self._results.lend(digest)
            if result is not None and name not in self._blobs.names():
                self._blobs.register(name, result)
                self._in_memory.add(name)

    def withdraw_results(self, but_for: Set[bytes]) -> None:
        """The others are not served from memory any more. From any thread."""
        with self._lock:
            for name in self._in_memory - {_result_name(digest) for digest in but_for}:
                self._in_memory.remove(name)
                self._blobs.remove(name)

    def announce_results(self) -> None:
        """Offers what is on disk, and of what is in memory only what was offered from there."""
        stored = {_result_name(digest): digest for digest in self._results.stored()}
        with self._lock:
            lent = {_result_name(digest) for digest in self._results.lent}
            returned = self._in_memory - lent
            self._in_memory -= returned
            offered = {name for name in self._blobs.names() if name.startswith("result/")}
            for name in offered - stored.keys() - self._in_memory:
                self._blobs.remove(name)
            for name in (stored.keys() - offered) | (stored.keys() & returned):
                with contextlib.suppress(StorageError):  # damaged: read, it counts as not there
                    self._blobs.register(name, self._results.path(stored[name]))


def _result_name(digest: bytes) -> str:
    return f"result/{digest.hex()}"
