"""Looking at a swarm from outside: what its peers claim in the DHT, and the chain that they prove.

A DHT node in client mode that publishes nothing. All views of a swarm are made of this.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

from atom.base.errors import AddressError, ConfigError, ControlError, TrustError
from atom.cli.box.control import ask_daemon
from atom.cli.look.chain_reader import ChainFetcher, LedgerReader, Progress
from atom.cli.shell.console import TerminalConsole
from atom.cli.shell.terminal import stderr_console
from atom.config.load import run_from_text
from atom.config.model_and_data import Data
from atom.config.places import default_state_directory
from atom.daemon.state_directory import own_identity
from atom.swarm.addresses import parse_join_address
from atom.swarm.chain.commit_chain import Ledger
from atom.swarm.dht.client import DirectoryUnavailable
from atom.swarm.dht.directory import Directory, no_answer, open_directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease
from atom.swarm.records.manifest import Manifest, first_head, seen_from_outside
from atom.swarm.records.view import SwarmView, view_swarm

TRIES = 4
"""A DHT that was just entered may need a moment to find the leases."""
RETRY_S = 0.7


class Onlooker:
    """One run's leases, and its ledger: the rounds that its peers prove. For one event loop."""

    def __init__(
        self,
        directory: Directory,
        manifest: Manifest,
        me: Identity | None = None,
        entrances: Sequence[str] = (),
    ) -> None:
        """Args:
        directory: Leases of the run.
        manifest: Manifest of the run.
        me: Identity to ask for the chain as; None: this machine's listed peer, if there is one
            in the usual place, otherwise a stranger.
        entrances: Multiaddrs by which the run was entered.
        """
        self._directory = directory
        self.manifest = manifest
        self.rounds, self._global_batch, self._data = _agreed_on(manifest)
        self._has_list = seen_from_outside(manifest) is not None
        here = me or own_identity(default_state_directory(manifest.run))
        self._me = "" if here is None else here.peer_id
        self._fetcher = ChainFetcher(manifest, me or listed_peer(manifest), entrances)
        self._reader = LedgerReader(first_head(manifest), self._fetcher)
        self.leases: dict[str, Lease] = {}
        """Of the last view."""
        self._progress = ""

    @property
    def alive(self) -> list[str]:
        """Who has not left, by the last view."""
        return [peer for peer, lease in self.leases.items() if lease.state != "left"]

    async def view(self) -> SwarmView:
        """The swarm now, as its peers claim it, whose `leases` are kept. Raises:
        DirectoryUnavailable while the DHT cannot be asked."""
        self.leases = await self._directory.read_leases()
        now, leases = time.time(), self.leases.values()
        return view_swarm(self.manifest, leases, self._global_batch, now, self._me, self._data)

    async def first_view(self) -> SwarmView:
        """As `view`, but patient with a DHT that was entered a moment ago.

        Raises: AddressError if the DHT answers not even the last question.
        """
        for tries_left in reversed(range(TRIES)):
            try:
                view = await self.view()
                if view.peers or not tries_left:
                    return view
            except DirectoryUnavailable as problem:
                if not tries_left:
                    raise no_answer(problem) from problem
            await asyncio.sleep(RETRY_S)
        raise AssertionError("the last try returns, or raises")

    # ---- the chain (with `view`: an `atom.extras.dashboard.feed.Swarm`)

    @property
    def ledger(self) -> Ledger:
        return self._reader.ledger

    @property
    def problem(self) -> str:
        """Why the ledger is not newer; empty: it is as new as any peer claims to know."""
        return self._reader.problem

    @property
    def note(self) -> str:
        """As `problem`, with what helps; while a read goes on, how far it is."""
        helps = "; --state DIR asks as one of them" if self.shut_out else ""
        return self._progress or f"{self.problem}{helps}"

    @property
    def shut_out(self) -> bool:
        """Whether that is because only listed peers are answered: asking again does not help."""
        return self._has_list and self._reader.shut_out

    async def read(self, tell: Progress | None = None) -> None:
        """Brings the ledger up to date, if the peers of the last look allow it. May take seconds,
        or minutes for a long chain: `tell` hears how far it is."""
        self._reader.on_progress = tell or self._note_progress
        self._fetcher.know(self.leases)
        try:
            await asyncio.to_thread(self._reader.read, list(self.leases.values()))
        finally:
            self._progress = ""

    def _note_progress(self, done: int, total: int) -> None:
        self._progress = f"checking the chain: {done:,} of {total:,} rounds"

    def close(self) -> None:
        """Ends a read under way."""
        self._fetcher.close()


@contextlib.asynccontextmanager
async def onlooking(address: str, state: Path | None = None) -> AsyncIterator[Onlooker]:
    """An onlooker of the run that `address` names; its DHT node ends with the block. `state`: of
    the peer as which to ask.

    Raises: AddressError if no node is reached, none knows the run, or there is no such peer.
    """
    me, where = identity_in(state), parse_join_address(address)
    node = NodeSettings(initial_peers=where.bootstrap, client_mode=True)
    with stderr_console().status("looking for the swarm"), _answering():
        directory = await open_directory(where.run, where.owner, node)
    try:
        with stderr_console().status("reading what the run is"), _answering():
            manifest, _ = await directory.read_manifest()
        onlooker = Onlooker(directory, manifest, me, where.bootstrap)
        try:
            yield onlooker
        finally:
            onlooker.close()
    finally:
        await directory.close()


async def looked_at(address: str, state: Path | None = None, chain: bool = False) -> Onlooker:
    """The run that `address` names, as it is now, by an onlooker that looks no more: its
    `leases`, and its `ledger` if the `chain` is asked for. Raises: AddressError; as `certified`."""
    async with onlooking(address, state) as onlooker:
        if chain:
            await certified(onlooker)
        await onlooker.first_view()
        return onlooker


async def certified(onlooker: Onlooker) -> Ledger:
    """Asks again for a while: peers serve their last heads only, and a lease may name one before
    them. Raises: AddressError, TrustError."""
    console = TerminalConsole()
    tell = partial(console.progress, "checking the chain", unit="rounds")
    try:
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S)
            await onlooker.first_view()
            await onlooker.read(tell)
            if onlooker.shut_out or not onlooker.problem:
                break
    finally:
        console.close()
    unread = f"the chain cannot be read: {onlooker.problem}"
    if onlooker.shut_out:
        ask = "ask on the box of such a peer; --state DIR, if its state is not in the usual place"
        raise TrustError(unread, ask)
    if onlooker.problem:
        raise AddressError(unread, "try again in a moment; `atom status` shows who is alive")
    if not onlooker.ledger.head.round and not onlooker.leases:
        raise AddressError("no peer of the run is alive to serve its chain", "try again later")
    return onlooker.ledger


def run_meant(address: str | None, state: Path | None) -> tuple[str, Path | None]:
    """The run to look at: its address, and the state directory of the peer to ask as. Without an
    address the daemon in `state` is asked, else the only one there is. Raises: ControlError."""
    if address is not None:
        return address, state
    try:
        info = ask_daemon(state, "info")
    except ControlError as problem:
        hint = f"{problem.hint}\nor give the run's ADDRESS"
        raise ControlError(problem.message, hint) from None
    if not info["join_address"]:
        said = f"this peer knows no way into its run: {info['paused']}"
        raise ControlError(said, "give the run's ADDRESS")
    return info["join_address"], Path(info["state_directory"])


def listed_peer(manifest: Manifest) -> Identity | None:
    """Who takes part in that run from its usual place here, if its owner has listed them. In an
    open run nobody has to give a name. Raises: StorageError."""
    listed = seen_from_outside(manifest)
    if listed is None:
        return None
    me = own_identity(default_state_directory(manifest.run))
    return me if me is not None and me.peer_id in listed else None


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


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Raises: AddressError where the DHT cannot be asked."""
    try:
        yield
    except DirectoryUnavailable as problem:
        raise no_answer(problem) from problem


def _agreed_on(manifest: Manifest) -> tuple[int | None, int | None, Data | None]:
    """Rounds of the run, sequences of its global batch, and its [data], if we can read them."""
    try:
        run = run_from_text(manifest.run_file)
    except ConfigError:
        return None, None, None
    return run.run.rounds, run.batch.global_sequences, run.data
