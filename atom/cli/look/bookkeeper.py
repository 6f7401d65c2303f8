"""The run's ledger while a command looks at it: read beside the event loop, kept for the next."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

from blake3 import blake3

from atom.base.errors import AddressError, PeerRefused
from atom.base.leftover import remove_leftover
from atom.cli.look.ledger_reader import ChainFetcher, LedgerReader, Progress
from atom.config.places import cache_directory, default_state_directory
from atom.daemon.own_identity import own_identity
from atom.swarm import schema
from atom.swarm.chain.commit import MAX_COUNT, Head, PeerId
from atom.swarm.chain.ledger import Ledger, Round, Share
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease
from atom.swarm.records.manifest import Manifest, first_head, seen_from_outside

SAVE_EVERY_ROUNDS = 256
_FORM = 5
"""Of a ledger's file; another one is not read."""


class _Kept(NamedTuple):
    """What the file holds."""

    form: Annotated[int, lambda form: form == _FORM]
    head: Head
    rounds: Annotated[tuple[Round, ...], MAX_COUNT]
    peer_ids: Annotated[tuple[PeerId, ...], MAX_COUNT]
    shares: Annotated[tuple[Share, ...], MAX_COUNT]
    """In the same order."""


class LedgerFile:
    """A ledger on this machine's disk: what was checked of the chain need not be checked again.

    It only saves time: a file that is damaged, or of another run, counts as none. It belongs to one
    run, is named after its genesis, and lies in a folder that is made when it is needed.
    """

    def __init__(self, folder: Path, genesis: Head) -> None:
        self._path = folder / f"{genesis.digest.hex()}.ledger"
        self._genesis = genesis

    def load(self) -> Ledger:
        """The ledger that was saved; that of genesis if there is no good file."""
        with contextlib.suppress(OSError, PeerRefused):
            raw = self._path.read_bytes()
            digest, content = raw[:32], raw[32:]
            if digest == blake3(content).digest():
                kept = schema.decode(_Kept, content, len(content))
                return Ledger(
                    kept.head, kept.rounds, dict(zip(kept.peer_ids, kept.shares, strict=False))
                )
        return Ledger(self._genesis)

    def save(self, ledger: Ledger) -> None:
        """Writes aside, then renames: another reader may save at the same time. A disk that does
        not take the file costs time and nothing else."""
        peer_ids, shares = tuple(ledger.shares), tuple(ledger.shares.values())
        content = schema.encode(_Kept(_FORM, ledger.head, ledger.rounds, peer_ids, shares))
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=".")
            try:
                with open(descriptor, "wb") as file:
                    file.write(blake3(content).digest() + content)
                os.replace(name, self._path)
            except BaseException:  # also when interrupted: nothing of ours stays
                remove_leftover(Path(name))
                raise


class Bookkeeper:
    """One run's ledger, as new as the peers let it be. For one event loop."""

    def __init__(
        self, reader: LedgerReader, fetcher: ChainFetcher, file: LedgerFile, has_list: bool
    ) -> None:
        """`has_list`: the run is for listed peers, by its manifest."""
        self._reader = reader
        self._fetcher = fetcher
        self._file = file
        self._has_list = has_list
        self._saved = reader.ledger
        self._progress = ""

    @property
    def ledger(self) -> Ledger:
        return self._reader.ledger

    @property
    def note(self) -> str:
        """As `problem`, with what helps; while a read goes on, how far it is."""
        helps = "; --state DIR asks as one of them" if self.shut_out else ""
        return self._progress or f"{self._reader.problem}{helps}"

    @property
    def problem(self) -> str:
        """Why the ledger is not newer; empty: it is as new as any peer claims to know."""
        return self._reader.problem

    @property
    def shut_out(self) -> bool:
        """Whether that is because only listed peers are answered: asking again does not help."""
        return self._has_list and self._reader.shut_out

    async def read(self, leases: Mapping[str, Lease], tell: Progress | None = None) -> Ledger:
        """Up to date, if the peers of these leases allow it. May take seconds, or for a long chain
        that was never read here, minutes: `tell` hears how far it is."""
        self._reader.on_progress = tell or self._note_progress
        self._fetcher.know(leases)
        try:
            ledger = await asyncio.to_thread(self._reader.read, list(leases.values()))
        finally:
            self._progress = ""
        if ledger.head.round - self._saved.head.round >= SAVE_EVERY_ROUNDS:
            self._save()
        return ledger

    def _note_progress(self, done: int, total: int) -> None:
        self._progress = f"checking the chain: {done:,} of {total:,} rounds"

    def close(self) -> None:
        """Keeps what was checked."""
        self._reader.stop()
        self._fetcher.close()
        if self._reader.ledger.head != self._saved.head:
            self._save()

    def _save(self) -> None:
        self._saved = self._reader.ledger
        self._file.save(self._saved)


@contextlib.asynccontextmanager
async def bookkeeping(manifest: Manifest, me: Identity | None) -> AsyncIterator[Bookkeeper]:
    """A bookkeeper of the run; closed with the block. `me`: under whose name to ask; None: that of
    this machine's listed peer, if there is one in the usual place, else a stranger's."""
    me = me or listed_peer(manifest)
    genesis = first_head(manifest)
    file = LedgerFile(cache_directory() / "ledgers", genesis)
    fetcher = ChainFetcher(manifest, me)
    has_list = seen_from_outside(manifest).peer_ids is not None
    keeper = Bookkeeper(LedgerReader(file.load(), genesis, fetcher), fetcher, file, has_list)
    try:
        yield keeper
    finally:
        keeper.close()


def listed_peer(manifest: Manifest) -> Identity | None:
    """Who takes part in that run from its usual place here, if its owner has listed them. In an
    open run nobody has to give a name. Raises: StorageError."""
    allowed = seen_from_outside(manifest)
    if allowed.peer_ids is None:
        return None
    me = own_identity(default_state_directory(manifest.run))
    return me if me is not None and allowed.holds(me.peer_id) else None


def identity_in(state: Path | None) -> Identity | None:
    """Of the peer whose state directory that is. Raises: AddressError if there is no such peer."""
    if state is None:
        return None
    if (found := own_identity(state)) is None:
        raise AddressError(
            f"there is no peer in {state}",
            "name the state directory of a peer of that run with --state DIR",
        )
    return found
