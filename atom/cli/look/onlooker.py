"""Observation of a swarm from outside: the claims of its peers in the DHT, and their proven chain.

The onlooker is a DHT node in client mode that publishes nothing. `atom status`, `watch`,
`contributions` and `dashboard` are all built on it.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

from atom.base.errors import AddressError, ConfigError, ControlError, TrustError
from atom.base.events import EventFan
from atom.cli.box.control import ask_daemon
from atom.cli.look.chain_reader import LedgerReader, Progress
from atom.cli.shell.console import TerminalConsole
from atom.cli.shell.terminal import stderr_console
from atom.config.load import run_from_text
from atom.config.places import default_state_directory
from atom.config.run_file import RunFile
from atom.daemon.state_directory import own_identity
from atom.swarm.addresses import parse_join_address
from atom.swarm.chain.commit_chain import Ask, Ledger
from atom.swarm.dht.directory import Directory, no_answer, open_directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.dial_rules import dialled_classes
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease, Reached
from atom.swarm.records.manifest import Manifest, first_head, manifest_digest, seen_from_outside
from atom.swarm.records.store import DirectoryUnavailable
from atom.swarm.records.view import SwarmView, view_swarm
from atom.swarm.state.fetch import UNCHECKED_PACE, asking
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.transport import Transport

TRIES = 4
"""Attempts to read the leases: a DHT node may not find them at once after it has entered."""
RETRY_S = 0.7


class Onlooker:
    """The leases of one run, and its ledger of proven rounds. Belongs to one event loop."""

    def __init__(
        self,
        directory: Directory,
        manifest: Manifest,
        me: Identity | None = None,
        entrances: Sequence[str] = (),
    ) -> None:
        """Read nothing of the swarm yet.

        Args:
            directory: Leases of the run.
            manifest: Manifest of the run.
            me: Identity to ask for the chain as; None: this machine's listed peer, if one is in
                the default state directory, otherwise a new key that no run lists.
            entrances: Multiaddrs through which the run was entered.
        """
        self._directory = directory
        self.manifest = manifest
        try:
            self._run: RunFile | None = run_from_text(manifest.run_file)
        except ConfigError:  # this version cannot read the run file
            self._run = None
        self.rounds = None if self._run is None else self._run.run.rounds
        """Number of rounds of the run; None: endless, or unknown."""
        listed = seen_from_outside(manifest)
        self._has_list = listed is not None
        here = me or own_identity(default_state_directory(manifest.run))
        self._me = "" if here is None else here.peer_id
        asker = me or listed_peer(manifest) or Identity.create()
        local = Local(asker, manifest_digest(manifest), os.urandom(16), listed=listed)
        dialled = partial(dialled_classes, (), entrances)
        self._transport = Transport(local, None, EventFan(), dialled=dialled)
        self._stop = threading.Event()
        self._reader = LedgerReader(first_head(manifest), self._fetch)
        self.leases: dict[str, Lease] = {}
        """Leases of the last view, by peer id."""
        self._progress = ""

    async def view(self) -> SwarmView:
        """Read the leases, keep them in `leases`, and return the swarm as its peers claim it.

        Raises:
            DirectoryUnavailable: The DHT did not answer.
        """
        self.leases = await self._directory.read_leases()
        return self.latest

    @property
    def latest(self) -> SwarmView:
        """The swarm as the leases of the last view show it now."""
        batch = None if self._run is None else self._run.batch.global_sequences
        data = None if self._run is None else self._run.data
        now, leases = time.time(), self.leases.values()
        return view_swarm(self.manifest, leases, batch, now, self._me, data)

    async def first_view(self) -> SwarmView:
        """Return the view after some retries, because the node may have entered the DHT just now.

        The view has no peers if no attempt found one.

        Raises:
            AddressError: The DHT did not answer the last attempt.
        """
        for _ in range(TRIES - 1):
            with contextlib.suppress(DirectoryUnavailable):
                if (view := await self.view()).peers:
                    return view
            await asyncio.sleep(RETRY_S)
        try:
            return await self.view()
        except DirectoryUnavailable as problem:
            raise no_answer(problem) from problem

    # ---- the chain; with `view`, this class implements `atom.extras.dashboard.feed.Swarm`

    @property
    def ledger(self) -> Ledger:
        """Rounds and contributions verified so far."""
        return self._reader.ledger

    @property
    def problem(self) -> str:
        """Reason why the ledger is not newer; empty if no peer claims a better chain."""
        return self._reader.problem

    @property
    def note(self) -> str:
        """Progress of the read that is under way; otherwise `problem` and a remedy, if any."""
        helps = "; --state DIR identifies as one of them" if self.shut_out else ""
        return self._progress or f"{self.problem}{helps}"

    @property
    def shut_out(self) -> bool:
        """True if we are refused for not being on the run's list, so that retrying is pointless."""
        return self._has_list and self._reader.shut_out

    async def read(self, on_progress: Progress | None = None) -> None:
        """Update the ledger from the peers of the last view.

        This may take seconds, or minutes for a long chain. Failures are in `problem`.

        Args:
            on_progress: Called with the progress, in another thread; None: shown by `note`.
        """
        self._reader.on_progress = on_progress or self._note_progress
        for peer_id, lease in self.leases.items():
            # Peers that cannot be dialled are reached through other peers.
            self._transport.set_addresses(peer_id, lease.addresses, lease.reached is Reached.NO)
        try:
            await asyncio.to_thread(self._reader.read, list(self.leases.values()))
        finally:
            self._progress = ""

    def _note_progress(self, done: int, total: int) -> None:
        self._progress = f"checking the chain: {done:,} of {total:,} rounds"

    def _fetch(self, lease: Lease) -> contextlib.AbstractContextManager[Ask]:
        return asking(self._transport, lease.peer_id, UNCHECKED_PACE, self._stop)

    def close(self) -> None:
        """End the read that is under way, and close the transport."""
        self._stop.set()
        self._transport.close()


@contextlib.asynccontextmanager
async def onlooking(address: str, state: Path | None = None) -> AsyncIterator[Onlooker]:
    """Enter the DHT of a run, and yield an onlooker. The DHT node ends with the block.

    Args:
        address: Join address of the run.
        state: State directory of the peer to ask as; None: see `Onlooker`.

    Raises:
        AddressError: No node was reached, none knows the run, or `state` has no peer.
    """
    me, where = identity_in(state), parse_join_address(address)
    node = NodeSettings(initial_peers=where.bootstrap, client_mode=True)
    async with contextlib.AsyncExitStack() as stack:
        try:
            with stderr_console().status("looking for the swarm"):
                directory = await open_directory(where.run, where.owner, node)
            stack.push_async_callback(directory.close)
            with stderr_console().status("reading the run's manifest"):
                manifest, _ = await directory.read_manifest()
        except DirectoryUnavailable as problem:
            raise no_answer(problem) from problem
        onlooker = Onlooker(directory, manifest, me, where.bootstrap)
        stack.callback(onlooker.close)
        yield onlooker


async def looked_at(address: str, state: Path | None = None, chain: bool = False) -> Onlooker:
    """Read a run once; return a closed onlooker that has its `leases`.

    Args:
        address: Join address of the run.
        state: State directory of the peer to ask as; None: see `Onlooker`.
        chain: If True, read the `ledger` too.

    Raises:
        AddressError: The run or its chain cannot be read, or no peer is alive to serve the chain.
        TrustError: The chain was asked for, and the run answers only listed peers.
    """
    async with onlooking(address, state) as onlooker:
        await (read_chain(onlooker) if chain else onlooker.first_view())
        return onlooker


async def read_chain(onlooker: Onlooker) -> None:
    """Read the leases and the ledger, with some retries; show the progress on the terminal.

    Retries help because peers serve their newest heads only, and a lease may name an older one.

    Raises:
        AddressError: The chain cannot be read, or no peer is alive.
        TrustError: The run answers only listed peers.
    """
    with contextlib.closing(TerminalConsole()) as console:
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(RETRY_S)
            await onlooker.first_view()
            await onlooker.read(partial(console.progress, "checking the chain"))
            if onlooker.shut_out or not onlooker.problem:
                break
    unread = f"the chain cannot be read: {onlooker.problem}"
    if onlooker.shut_out:
        ask = "ask from the machine of a listed peer; name its state directory with --state DIR"
        raise TrustError(unread, ask)
    if onlooker.problem:
        raise AddressError(unread, "try again in a moment; `atom status` shows live peers")
    if not onlooker.ledger.head.round and not onlooker.leases:
        raise AddressError("no peer of the run is alive to serve its chain", "try again later")


def run_meant(address: str | None, state: Path | None) -> tuple[str, Path | None]:
    """Return the address of the run to look at, and the state directory of the peer to ask as.

    Args:
        address: Join address that the user gave; None: ask a daemon on this machine.
        state: State directory of that daemon, or of the peer to ask as; None without an address:
            the only daemon that runs.

    Raises:
        ControlError: No daemon could be asked, or it knows no address of its run.
    """
    if address is not None:
        return address, state
    try:
        info = ask_daemon(state, "info")
    except ControlError as problem:
        hint = f"{problem.hint}\nor give the run's ADDRESS"
        raise ControlError(problem.message, hint) from None
    if not info["join_address"]:
        if step := info.get("step"):
            raise ControlError(f"this peer is still starting ({step})", "try again in a moment")
        said = f"this peer knows no address of its run: {info['paused']}"
        raise ControlError(said, "give the run's ADDRESS")
    return info["join_address"], Path(info["state_directory"])


def listed_peer(manifest: Manifest) -> Identity | None:
    """Return the peer in the run's default state directory, if the run's owner listed it.

    Return None for a run without a list, which answers strangers too.

    Raises:
        StorageError: The key file is damaged.
    """
    listed = seen_from_outside(manifest)
    if listed is None:
        return None
    me = own_identity(default_state_directory(manifest.run))
    return me if me is not None and me.peer_id in listed else None


def identity_in(state: Path | None) -> Identity | None:
    """Return the identity of the peer in a state directory; None without a directory.

    Raises:
        AddressError: The directory has no peer.
        StorageError: The key file is damaged.
    """
    if state is None:
        return None
    if (found := own_identity(state)) is None:
        raise AddressError(
            f"there is no peer in {state}",
            "use --state DIR to name the state directory of a peer of that run",
        )
    return found
