"""Page shown before a machine joins a run: its speed, what training takes of it, a question."""

from collections.abc import Mapping

import typer
from rich.console import RenderableType
from rich.text import Text

from atom.base.errors import DeviceError
from atom.base.units import format_bytes
from atom.cli.shell.console import TerminalConsole
from atom.cli.shell.terminal import facts, stderr_console
from atom.cli.train.plan import fit
from atom.config.peer_file import PeerFile
from atom.daemon.model.recipe import Recipe
from atom.daemon.model.texts import total_bytes
from atom.daemon.peer.box import Box
from atom.plan.offer import Offer
from atom.swarm.records.lease import Lease
from atom.swarm.records.manifest import Manifest

_HOURS_A_MONTH = 730
_ROWS_FOR_ALL = (
    ("sent", "gradients, counts, speeds, your IP address, this peer's id and name; no files"),
    ("", "(docs/volunteer.md, What leaves your machine)"),
    ("to limit", 'add --upload "10 Mbit/s", --download "50 Mbit/s", --gpu-memory "6 GB",'),
    ("", '--cpu-threads 4 or --hours "22:00-07:00" to this command'),
    ("to pause", "atom pause, then atom resume; atom leave or Ctrl-C ends the peer cleanly"),
)


def ask(
    console: TerminalConsole,
    recipe: Recipe,
    manifest: Manifest,
    leases: Mapping[str, Lease],
    box: Box,
) -> None:
    """Show what joining a run means for this machine, and on a terminal ask whether to join.

    A service has no terminal: waiting there for an answer would last for ever, so it joins. Nothing
    is shown if the model does not fit: setting up the replica then reports why.

    Args:
        console: The daemon's console, which prints its notes before the screen.
        recipe: The run and its traced model.
        manifest: Manifest of the run.
        leases: Leases of the swarm.
        box: This machine.

    Raises:
        typer.Exit: The answer is no.
    """
    sizes, me = (box.state.room_bytes, total_bytes(manifest.text)), box.identity.peer_id
    swarm = manifest, leases.values(), me
    try:
        offer = Offer.of(recipe.run, recipe.graph, box.peer, *swarm, *sizes, console.note)
    except DeviceError:
        return
    console.close()
    stderr_console().print(screen(offer, box.peer))
    if console.ask("Join this run?", default=True) is False:
        typer.echo("not joined: no text or state was fetched; the command asks again", err=True)
        raise typer.Exit


def screen(offer: Offer, peer: PeerFile) -> RenderableType:
    """Return the page that shows an owner what training in a run takes of the machine.

    Args:
        offer: Speed of this machine next to the swarm's, and estimates of what training takes.
        peer: Peer file of this machine, whose limits of bandwidth are shown.
    """
    host, disk, device = (getattr(offer.plan.footprint, n) for n in ("host", "disk", "device"))
    network, hourly, watts = peer.network, offer.line_bytes_per_h, offer.watts
    limits = {"up": network.upload_bits_per_s, "down": network.download_bits_per_s}
    capped = [f"; at most {rate / 1e6:,.4g} Mbit/s {way}" for way, rate in limits.items() if rate]
    month = f"{format_bytes(hourly * _HOURS_A_MONTH)} a month each way, if it trains all the time"
    rounds = offer.plan.run.snapshot.every_rounds
    averages = f"at most {rounds:,} of {format_bytes(offer.average_bytes)}"
    rows: list[tuple[str, str | Text]] = [
        ("use", offer.speed),
        ("line", f"{format_bytes(hourly)} per hour up and as much down{''.join(capped)}"),
        ("", month),
        ("", f"once {format_bytes(offer.fetched_bytes)} down: state and text"),
        ("", f"then the averages of the rounds since that state: {averages}"),
        ("memory", _of(host.total_bytes, host.have_bytes)),
        ("device", f"{format_bytes(device.total_bytes)} on {offer.plan.device}"),
        ("disk", _of(disk.total_bytes, disk.have_bytes)),
    ]
    if watts:
        energy = f"at most {watts * _HOURS_A_MONTH / 1000:,.0f} kWh a month"
        rows.append(("power", f"up to {watts:,.0f} W, the limit of the card: {energy}"))
    return facts([*rows, *_ROWS_FOR_ALL])


def _of(need: int, have: int) -> Text:
    return Text.assemble(f"{format_bytes(need)} of {format_bytes(have)}: ", fit(need, have))
