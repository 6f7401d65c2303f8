"""What the demo says at the end: who did what, whether the claims held, where the files are."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from atom.cli.demo.display import StoryLine
from atom.cli.demo.stage import Stage
from atom.cli.demo.verdict import Check, PeerResult
from atom.swarm.identity import short_id

_DIGEST_CHARACTERS = 12
_NUMBERS = ("rounds", "mini-batches", "tokens/s")


def report(
    story: Sequence[StoryLine], results: Sequence[PeerResult], checks: Sequence[Check], stage: Stage
) -> RenderableType:
    """Story, table, claims, files."""
    lines = [Text.assemble((f"{line.elapsed_s:6.1f} s  ", "quiet"), line.text) for line in story]
    parts: list[RenderableType] = [*lines, Text(), _table(results), Text()]
    parts += [_check(check) for check in checks]
    parts += [Text(), _file("loss curve", str(stage.plot)), _file("events", str(stage.events))]
    return Padding(Group(*parts), (1, 0, 1, 2))


def _table(results: Sequence[PeerResult]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for title in ("peer", "id", *_NUMBERS, "digest", "fate"):
        table.add_column(title, justify="right" if title in _NUMBERS else "left", no_wrap=True)
    for result in results:
        row = "" if result.survived else "dim"
        table.add_row(
            Text(result.name, row or "bold"),
            short_id(result.peer_id) if result.peer_id else "-",
            f"{result.rounds:,}",
            f"{result.mini_batches:,}",
            f"{result.tokens_per_s:,.0f}",
            Text(result.digest[:_DIGEST_CHARACTERS] or "-", "good" if result.survived else "dim"),
            result.fate or "ended by the demo",
            style=row,
        )
    return table


def _check(check: Check) -> Text:
    mark = ("✓ ", "good") if check.passed else ("✗ ", "bad")
    return Text.assemble(mark, check.claim, (f"   {check.figures}", "quiet"))


def _file(what: str, path: str) -> Text:
    text = Text.assemble((f"{what:<12}", "bold"), path)
    text.overflow = "fold"
    return text
