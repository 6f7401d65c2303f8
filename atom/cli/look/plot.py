"""`atom plot`: a run as a picture, from this box's event log or from the swarm's chain."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from atom.base.errors import PeerRefused, StorageError
from atom.cli.box.local_daemons import find_state
from atom.cli.look.onlooker import read_ledger
from atom.cli.look.rounds import PlottedRound, rounds_of_ledger, rounds_of_log
from atom.cli.shell.output_file import refuse_folders, write_whole
from atom.cli.shell.signals import run_to_the_end
from atom.daemon.state_directory import StateDirectory
from atom.swarm.records.codec import decode_manifest
from atom.swarm.records.view import loss_unit, trained_on

FORMS = (".png", ".svg", ".pdf")
DataAmount = tuple[int, int, int] | None
_LINE, _VALIDATION, _BRANCH = "#1f6fb4", "#d9480f", "#c92a2a"
_WIDTH_INCHES, _PANEL_INCHES = 9.0, 2.0


def plot_run(file: Path, address: str | None, state: Path | None) -> None:
    """Writes the picture; says what is on it.

    Raises: typer.BadParameter for another form; StorageError; AddressError; TrustError.
    """
    if file.suffix.lower() not in FORMS:
        forms = ", ".join(FORMS)
        raise typer.BadParameter(f"{file} does not end in one of {forms}", param_hint="FILE")
    refuse_folders(file, "run.png")
    name, amount, rounds = _of_swarm(address, state) if address else _of_log(find_state(state))
    write_whole(file, lambda place: draw_run(place, rounds, name, amount))
    first, last = rounds[0].number, rounds[-1].number
    drawn = f"round {first:,}" if first == last else f"rounds {first:,} to {last:,}"
    typer.echo(f"{file}: {name}, {drawn}")


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


def _of_swarm(address: str, state: Path | None) -> tuple[str, DataAmount, list[PlottedRound]]:
    manifest, ledger = run_to_the_end(read_ledger(address, state))
    if not ledger.rounds:
        raise StorageError("the run has no committed round yet", "try again after the first round")
    return manifest.run, manifest.data_amount, rounds_of_ledger(ledger)


def draw_run(path: Path, rounds: Sequence[PlottedRound], title: str, amount: DataAmount) -> None:
    """Loss, throughput, membership and reduce time, one below the other, as far as they are known.
    The form follows the name. `amount`: as the manifest says it. Raises: OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second
    from matplotlib.figure import Figure

    unit = loss_unit(amount)
    labels: dict[str, Callable[[PlottedRound], float | None]] = {
        f"loss\n({unit})" if unit else "loss": lambda each: each.loss,
        f"{trained_on(amount)}/s\nof the swarm": lambda each: each.tokens_per_s,
        "peers with\na part": lambda each: each.members,
        "all-reduce (s)": lambda each: each.reduce_s,
    }
    known = {label: _known(rounds, value) for label, value in labels.items()}
    panels = [(label, points) for label, points in known.items() if points]
    size = (_WIDTH_INCHES, _PANEL_INCHES * len(panels))
    figure = Figure(size, dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    column = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    branches = [each.number for each in rounds if each.branch]
    for axes, (label, points) in zip(column, panels, strict=True):
        _draw(axes, label, points, branches)
    checked = _known(rounds, lambda each: each.validation_loss)
    column[0].plot(
        *zip(*checked, strict=True) if checked else ([], []), "o", ms=4, color=_VALIDATION
    )
    told = [title, *["dots: validation"] * bool(checked), *["red: no quorum"] * bool(branches)]
    column[0].set_title(", ".join(told), loc="left", fontsize=11, parse_math=False)
    _number_rounds(column[-1], rounds[0].number, rounds[-1].number)
    figure.align_ylabels()
    figure.savefig(path)


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


def _known(
    rounds: Sequence[PlottedRound], value: Callable[[PlottedRound], float | None]
) -> list[tuple[int, float]]:
    points = [(each.number, value(each)) for each in rounds]
    return [(number, at) for number, at in points if at is not None and math.isfinite(at)]
