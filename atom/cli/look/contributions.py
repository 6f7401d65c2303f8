"""`atom contributions`: what each peer gave to a run, from its certified chain."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from atom.base.errors import AddressError, TrustError
from atom.cli.look.bookkeeper import Bookkeeper, bookkeeping, identity_in
from atom.cli.look.onlooker import EMPTY_RETRIES, RETRY_S, Onlooker, Sight, onlooking
from atom.cli.look.run_meant import run_meant
from atom.cli.shell.daemon_console import TerminalConsole
from atom.cli.shell.signals import run_to_the_end
from atom.cli.shell.terminal import columns_of, print_plainly, stdout_console
from atom.swarm.addresses import parse_join_address
from atom.swarm.chain.ledger import Ledger
from atom.swarm.identity import short_id
from atom.swarm.records.run_manifest import Manifest

_COLUMNS = ("peer", "mini-batches", "share", "rounds", "first", "last")
_LEAST_COLUMNS = 3


def show_contributions(address: str | None, state: Path | None, as_json: bool) -> None:
    """Prints who gave what. Raises: ControlError; what `read_ledger` does."""
    manifest, ledger = run_to_the_end(read_ledger(*run_meant(address, state)))
    if as_json:
        typer.echo(json.dumps(contributions(manifest, ledger), indent=2))
        return
    print_plainly(headline(manifest, ledger))
    console = stdout_console()
    if console.is_terminal:
        print_plainly(fitting(ledger, console.width))
    else:
        whole = table(ledger, whole_ids=True)
        print_plainly(whole, least_columns=columns_of(whole))


def contributions(manifest: Manifest, ledger: Ledger) -> dict[str, Any]:
    """The keys of `atom contributions --json`."""
    return {
        "run": manifest.run,
        "owner": manifest.owner,
        "round": ledger.head.round,
        "head": ledger.head.digest.hex(),
        "mini_batches": ledger.sequences,
        "peers": [
            {
                "peer_id": peer_id,
                "mini_batches": share.sequences,
                "share": round(share.sequences / ledger.sequences, 6),
                "rounds": share.rounds,
                "first_round": share.first_round,
                "last_round": share.last_round,
            }
            for peer_id, share in ledger.by_share()
        ],
    }


def headline(manifest: Manifest, ledger: Ledger) -> Text:
    """`shakespeare   1,234 mini-batches in 40 rounds, certified up to head 0123456789ab`"""
    head = ledger.head
    return Text.assemble(
        (manifest.run, "name"),
        "   ",
        (f"{ledger.sequences:,}", "number"),
        " mini-batches in ",
        (f"{head.round:,}", "number"),
        f" round{'' if head.round == 1 else 's'}, certified up to head {head.digest.hex()[:12]}",
    )


def fitting(ledger: Ledger, width: int) -> Table:
    """As `table`, with as many of its columns as a terminal of that width has room for."""
    for columns in range(len(_COLUMNS), _LEAST_COLUMNS, -1):
        shown = table(ledger, whole_ids=False, columns=columns)
        if columns_of(shown) <= width:
            return shown
    return table(ledger, whole_ids=False, columns=_LEAST_COLUMNS)


def table(ledger: Ledger, whole_ids: bool, columns: int = len(_COLUMNS)) -> Table:
    """One row per peer that ever gave something."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for title in _COLUMNS[:columns]:
        shown.add_column(title, justify="left" if title == "peer" else "right", no_wrap=True)
    for peer_id, share in ledger.by_share():
        cells = (
            peer_id if whole_ids else short_id(peer_id),
            f"{share.sequences:,}",
            f"{share.sequences / ledger.sequences:.1%}",
            f"{share.rounds:,}",
            f"{share.first_round:,}",
            f"{share.last_round:,}",
        )
        shown.add_row(*cells[:columns])
    return shown


async def read_ledger(address: str, state: Path | None) -> tuple[Manifest, Ledger]:
    """The run's ledger as it is now. Raises: AddressError: also if nobody serves the chain;
    TrustError if that is for listed peers only, and this is none of them."""
    me = identity_in(state)
    async with onlooking(parse_join_address(address)) as onlooker:
        sight = await onlooker.first_look()
        async with bookkeeping(onlooker.manifest, me) as keeper:
            ledger = await _up_to_date(keeper, onlooker, sight)
            return onlooker.manifest, ledger


async def _up_to_date(keeper: Bookkeeper, onlooker: Onlooker, sight: Sight) -> Ledger:
    """Asks again for a while: peers serve their last heads only, and a lease may name one before
    them. Raises: AddressError, TrustError."""
    console = TerminalConsole()
    tell = partial(console.progress, "checking the chain", unit="rounds")
    try:
        ledger = await keeper.read(sight.leases, tell)
        for _ in range(EMPTY_RETRIES):
            if keeper.shut_out or not keeper.problem:
                break
            await asyncio.sleep(RETRY_S)
            sight = await onlooker.first_look()
            ledger = await keeper.read(sight.leases, tell)
    finally:
        console.close()
    unread = f"the chain cannot be read: {keeper.problem}"
    if keeper.shut_out:
        ask = "ask on the box of such a peer; --state DIR, if its state is not in the usual place"
        raise TrustError(unread, ask)
    if keeper.problem:
        raise AddressError(unread, "try again in a moment; `atom status` shows who is alive")
    if not ledger.head.round and not sight.leases:
        raise AddressError("no peer of the run is alive to serve its chain", "try again later")
    return ledger
