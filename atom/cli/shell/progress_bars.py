"""Long steps on stderr: bars with their rates on a terminal, a line now and then anywhere else."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from atom.base.units import format_bytes
from atom.daemon.console import BYTES

FIRST_LINE_S, LAST_INTERVAL_S = 2.0, 60.0
"""Where nobody sees a bar: what takes less than this needs no word; each next line comes after
twice the time, up to this."""


@dataclass(frozen=True)
class Step:
    """How far one long step is. `total` 0: it broke off after `done`."""

    what: str
    done: int
    total: int
    unit: str

    @property
    def share(self) -> float:
        return 1.0 if self.done >= self.total else self.done / self.total


def rate_text(per_s: float | None, unit: str) -> str:
    """ "12.3 MiB/s", "1,234 rounds/s"; empty: not known yet."""
    if not per_s:
        return ""
    if unit == BYTES:
        return f"{format_bytes(per_s)}/s"
    return f"{per_s:,.0f} {unit}/s" if per_s >= 10 else f"{per_s:.2g} {unit}/s"


class Bars:
    """On a terminal. Drawn from the first step on, gone with the last. For one thread at a time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._drawn: Progress | None = None
        self._rows: dict[str, TaskID] = {}

    def show(self, step: Step) -> None:
        if self._drawn is None:
            self._drawn = _progress(self._console)
            self._drawn.start()
        if step.what not in self._rows:
            counted = None if step.total == 1 else step.total  # nothing to count: it moves, no more
            row = self._drawn.add_task(step.what, total=counted, unit=step.unit)
            self._rows[step.what] = row
        if step.total != 1:
            self._drawn.update(self._rows[step.what], completed=step.done, total=step.total)
        if step.share == 1:
            self._drawn.remove_task(self._rows.pop(step.what))
            if not self._rows:
                self.close()

    def close(self) -> None:
        """Leaves the terminal as it was; later steps are drawn again."""
        if self._drawn is not None:
            self._drawn.stop()
        self._drawn = None
        self._rows.clear()


class Lines:
    """Where stderr is a file or a pipe. For one thread at a time."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._begun: dict[str, _Begun] = {}

    def show(self, step: Step) -> None:
        if step.total == 1:  # nothing to count: whatever is said next says that it is over
            return
        now = self._clock()
        if step.total == 0:
            self._break_off(step)
            return
        begun = self._begun.setdefault(step.what, _Begun(now, step.done))
        if step.share == 1:
            del self._begun[step.what]
        ends_what_was_said = step.share == 1 and begun.lines
        if now < begun.next_line_at and not ends_what_was_said:
            return
        rate = rate_text((step.done - begun.done) / max(now - begun.at, 1e-9), step.unit)
        line = f"{step.what}: {step.share:.0%}" + (f", {rate}" if rate else "")
        self._console.print(line, markup=False, soft_wrap=True)
        begun.said(now)

    def _break_off(self, step: Step) -> None:
        begun = self._begun.pop(step.what, None)
        if begun is not None and begun.lines:
            in_bytes = step.unit == BYTES
            reached = format_bytes(step.done) if in_bytes else f"{step.done:,} {step.unit}"
            line = f"{step.what}: broke off after {reached}"
            self._console.print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to take back."""
        self._begun.clear()


class _Begun:
    """When a step began, and when it is next worth a line."""

    def __init__(self, at: float, done: int) -> None:
        self.at = at
        self.done = done
        self.lines = 0
        self.next_line_at = at + FIRST_LINE_S

    def said(self, now: float) -> None:
        self.lines += 1
        self.next_line_at = now + min(LAST_INTERVAL_S, FIRST_LINE_S * 2**self.lines)


class _Share(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"{task.percentage:>3.0f}%")


class _TimeLeft(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(rate_text(task.speed, task.fields["unit"]))


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        _Share(),
        _Rate(),
        _TimeLeft(),
        console=console,
        transient=True,
    )
