"""What the demo shows while it plays: the watch display with the story below, or plain lines."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from atom.cli.look.loss_chart import Point
from atom.cli.look.onlooker import Sight
from atom.cli.look.watch import chart_rows, frame, live_display, plain_line
from atom.cli.shell.terminal import draws

_STORY_LINES = 8
_OTHER_ROWS = 4
"""The demo's own headline and footer, with a blank line each."""
_LINE_EVERY_S = 5.0


@dataclass(frozen=True)
class Moment:
    """What there is to see."""

    elapsed_s: float
    sight: Sight | None
    """None until the swarm is reached."""
    names: Mapping[str, str]
    """Peer id → name."""
    losses: Sequence[Point]


@dataclass(frozen=True)
class StoryLine:
    elapsed_s: float
    text: str

    def __str__(self) -> str:
        return f"{self.elapsed_s:6.1f} s  {self.text}"


class Display(Protocol):
    """Where the play is shown."""

    def say(self, elapsed_s: float, text: str) -> None:
        """Something happened."""

    def show(self, moment: Moment) -> None:
        """How things stand; called several times a second."""


@dataclass
class LiveDisplay:
    """On a terminal."""

    live: Live
    limit_s: float
    story: list[StoryLine] = field(default_factory=list)

    def say(self, elapsed_s: float, text: str) -> None:
        self.story.append(StoryLine(elapsed_s, text))

    def show(self, moment: Moment) -> None:
        head = Text.assemble(
            ("atom demo", "bold"),
            f"   three peers on this machine   {_minutes(moment.elapsed_s)}",
            (f" of at most {_minutes(self.limit_s)}", "quiet"),
        )
        story = Group(*(self._line(line) for line in self.story[-_STORY_LINES:]))
        body: RenderableType = Padding(story, (1, 2, 0, 2))
        if moment.sight is not None:
            peers = len(moment.sight.view.peers)
            rows = chart_rows(
                self.live.console.height, peers, min(len(self.story), _STORY_LINES) + _OTHER_ROWS
            )
            body = frame(moment.sight, moment.losses, moment.names, story, rows)
        hint = Text("Ctrl-C ends the demo and all its processes", "quiet")
        group = Group(Padding(head, (1, 2, 0, 2)), body, Padding(hint, (1, 2, 0, 2)))
        self.live.update(group, refresh=True)

    def _line(self, line: StoryLine) -> Text:
        text = Text.assemble((f"{line.elapsed_s:6.1f} s  ", "quiet"), line.text)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


@dataclass
class PlainDisplay:
    """Into a pipe or file: what happens, and now and then how things stand."""

    console: Console
    story: list[StoryLine] = field(default_factory=list)
    _said_at: float = 0.0

    def say(self, elapsed_s: float, text: str) -> None:
        line = StoryLine(elapsed_s, text)
        self.story.append(line)
        self._print(str(line))

    def show(self, moment: Moment) -> None:
        if moment.sight is None or moment.elapsed_s - self._said_at < _LINE_EVERY_S:
            return
        self._said_at = moment.elapsed_s
        self._print(str(StoryLine(moment.elapsed_s, plain_line(moment.sight))))

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)


@contextmanager
def open_display(console: Console, limit_s: float) -> Iterator[LiveDisplay | PlainDisplay]:
    """The display that suits the console; needs a running event loop."""
    if not draws(console):
        yield PlainDisplay(console)
        return
    with live_display(console) as live:
        yield LiveDisplay(live, limit_s)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
