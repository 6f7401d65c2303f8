"""`atom plot`: a run as a picture, from this box's event log or from the swarm's chain."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from atom.base.errors import PeerRefused, StorageError
from atom.base.events import older_log
from atom.cli.box.local_daemons import find_state
from atom.cli.look.onlooker import read_ledger
from atom.cli.shell.output_file import refuse_folders, write_whole
from atom.cli.shell.signals import run_to_the_end
from atom.daemon.state_directory import StateDirectory
from atom.swarm.chain.ledger import Ledger
from atom.swarm.records.codec import decode_manifest
from atom.swarm.records.view import loss_unit, trained_on

FORMS = (".png", ".svg", ".pdf")
DataAmount = tuple[int, int, int] | None
_LINE, _VALIDATION, _BRANCH = "#1f6fb4", "#d9480f", "#c92a2a"
_WIDTH_INCHES, _PANEL_INCHES = 9.0, 2.0


@dataclass(frozen=True)
class PlottedRound:
    """What is known of one round; None: the source does not say."""

    number: int
    loss: float
    members: int
    branch: bool
    validation_loss: float | None = None
    tokens_per_s: float | None = None
    reduce_s: float | None = None


def plot_run(file: Path, address: str | None, state: Path | None) -> None:
    """Writes the picture; says what is on it.

    Raises: typer.BadParameter for another form; StorageError; AddressError; TrustError.
    """
    if file.suffix.lower() not in FORMS:
        forms = ", ".join(FORMS)
        raise typer.BadParameter(f"{file} does not end in one of {forms}", param_hint="FILE")
    refuse_folders(file, "run.png")
    name, amount, rounds = _of_swarm(address, state) if address else _of_log(find_state(state))
    if not rounds:
        raise StorageError(f"{name} has no committed round yet", "try again after the first round")
    write_whole(file, lambda place: draw_run(place, rounds, name, amount))
    first, last = rounds[0].number, rounds[-1].number
    drawn = f"round {first:,}" if first == last else f"rounds {first:,} to {last:,}"
    typer.echo(f"{file}: {name}, {drawn}")


def _of_swarm(address: str, state: Path | None) -> tuple[str, DataAmount, list[PlottedRound]]:
    manifest, ledger = run_to_the_end(read_ledger(address, state))
    return manifest.run, manifest.data_amount, rounds_of_ledger(ledger)


def rounds_of_ledger(ledger: Ledger) -> list[PlottedRound]:
    """What the chain says: no speeds, no times."""
    return [
        PlottedRound(each.number, each.loss, each.members, bool(each.branch))
        for each in ledger.rounds
    ]


def _of_log(state: Path) -> tuple[str, DataAmount, list[PlottedRound]]:
    """The run's name and how much there is to train on are in its manifest; a directory without
    one, as of a log that was moved, gives its own name."""
    folder = StateDirectory(state)
    rounds = rounds_of_log(folder.events)
    try:
        manifest = decode_manifest(folder.manifest.read_bytes(), None)
    except (OSError, PeerRefused):
        return folder.root.name, None, rounds
    return manifest.run, manifest.data_amount, rounds


def rounds_of_log(path: Path) -> list[PlottedRound]:
    """In order; of a round that is told twice (after a catch-up), the later telling. Raises:
    StorageError if the log cannot be read."""
    try:
        files = [file for file in (older_log(path), path) if file.exists() or file == path]
        told = {each.number: each for file in files for each in _told(file)}
    except OSError as problem:
        raise StorageError(
            f"cannot read {path}: {problem.strerror}", "name a peer's directory with --state DIR"
        ) from problem
    return [told[number] for number in sorted(told)]


def _told(path: Path) -> Iterator[PlottedRound]:
    """Lines that do not read are left out: a full disk, or a crash, may have damaged some. Raises:
    OSError."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                event = json.loads(line)
                if event["event"] == "round":
                    yield _of_event(event)
            except (ValueError, KeyError, TypeError, RecursionError):
                continue


def _of_event(event: dict[str, Any]) -> PlottedRound:
    """Raises: KeyError, TypeError, ValueError."""
    validation = event.get("validation_loss")
    shares = zip(event["members"], event["contributed"], strict=True)
    return PlottedRound(
        number=int(event["round"]),
        loss=float(event["loss"]),
        members=len({member for member, sequences in shares if sequences}),
        branch=bool(event["branch"]),
        validation_loss=None if validation is None else float(validation),
        tokens_per_s=float(event["tokens_per_s"]) or None,
        reduce_s=float(event["reduce_seconds"]) or None,
    )


def draw_run(path: Path, rounds: Sequence[PlottedRound], title: str, amount: DataAmount) -> None:
    """Loss, throughput, membership and reduce time, one below the other, as far as they are known.
    The form follows the name. `amount`: as the manifest says it. Raises: OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second
    from matplotlib.figure import Figure

    unit = loss_unit(amount)
    labels = {
        "loss": f"loss\n({unit})" if unit else "loss",
        "tokens_per_s": f"{trained_on(amount)}/s\nof the swarm",
        "members": "peers with\na part",
        "reduce_s": "all-reduce (s)",
    }
    panels = [key for key in labels if _known(rounds, key)]
    size = (_WIDTH_INCHES, _PANEL_INCHES * len(panels))
    figure = Figure(size, dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    column = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    branches = [each.number for each in rounds if each.branch]
    for axes, key in zip(column, panels, strict=True):
        _draw(axes, labels[key], _known(rounds, key), branches)
    checked = _known(rounds, "validation_loss")
    for point in checked:
        column[0].plot(*point, "o", ms=4, color=_VALIDATION)
    told = [title, *["dots: validation"] * bool(checked), *["red: no quorum"] * bool(branches)]
    column[0].set_title(", ".join(told), loc="left", fontsize=11, parse_math=False)
    _number_rounds(column[-1], rounds[0].number, rounds[-1].number)
    figure.align_ylabels()
    figure.savefig(path)


def _known(rounds: Sequence[PlottedRound], key: str) -> list[tuple[int, float]]:
    points = [(each.number, getattr(each, key)) for each in rounds]
    return [(number, at) for number, at in points if at is not None and math.isfinite(at)]


def _draw(axes: Any, label: str, points: list[tuple[int, float]], branches: list[int]) -> None:
    """One panel; a point alone has no line."""
    marker = "o" if len(points) == 1 else None
    axes.plot(*zip(*points, strict=True), color=_LINE, linewidth=1.4, marker=marker)
    if not label.startswith("loss"):
        axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
    for number in branches:
        axes.axvline(number, color=_BRANCH, linestyle="--", linewidth=1)
    axes.set_ylabel(label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _number_rounds(axes: Any, first: int, last: int) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_xlabel("round (one optimizer step of the whole swarm)")
    axes.set_xlim(first - 0.6, last + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
