"""`atom demo`: claims the folder, has the play performed, judges it, writes the record."""

import contextlib
from pathlib import Path

from rich.console import Console

from atom.base.errors import AtomError
from atom.cli.demo.actor import adopt_orphans, end_descendants
from atom.cli.demo.display import StoryLine, open_display
from atom.cli.demo.loss_plot import draw_loss
from atom.cli.demo.performance import Performance, Plan
from atom.cli.demo.record import merge, rounds_of, write_events
from atom.cli.demo.report import report
from atom.cli.demo.stage import Stage, run_text
from atom.cli.demo.verdict import Check, PeerResult, judge, sum_up
from atom.cli.shell.exit_codes import ExitCode
from atom.cli.shell.failures import say_error
from atom.cli.shell.signals import run_to_the_end
from atom.cli.shell.terminal import stdout_console
from atom.config.load import load_run_file, parse_run_text
from atom.config.run_file import RunFile

LIMIT_S = 225.0
"""With the run file's own number of rounds; the report still has to fit into four minutes."""


def run_demo(directory: Path, rounds: int | None) -> ExitCode:
    """Plays the demo. Returns OK only if every claim held. Raises: StorageError."""
    stage = Stage(directory)
    stage.claim(rounds)
    adopt_orphans()
    try:
        return _play_and_judge(stage, load_run_file(stage.run_file), stdout_console())
    finally:
        end_descendants()
        stage.release()


def _play_and_judge(stage: Stage, run: RunFile, console: Console) -> ExitCode:
    usual = parse_run_text(run_text(None)).run.rounds
    wanted = run.run.rounds
    assert usual is not None, "the demo ends"
    assert wanted is not None, "the demo ends"
    plan = Plan(wanted, LIMIT_S * max(1.0, wanted / usual))
    play = _Play(stage, run, plan)
    try:
        run_to_the_end(play.perform(console))
    except AtomError as failure:
        play.write()
        say_error(failure.message, failure.hint)
        return ExitCode.FAULT
    finally:
        end_descendants()
    results, checks = play.write()
    console.print(report(play.story, results, checks, stage))
    if all(check.passed for check in checks):
        return ExitCode.OK
    failed = sum(not check.passed for check in checks)
    what = f"the demo missed its goal: {failed} of {len(checks)} claims did not hold"
    say_error(what, f"the peers' logs are in {stage.root}")
    return ExitCode.FAULT


class _Play:
    """A performance with its display, and the record of it."""

    def __init__(self, stage: Stage, run: RunFile, plan: Plan) -> None:
        self._stage = stage
        self._run = run
        self._plan = plan
        self._performance: Performance | None = None
        self.story: list[StoryLine] = []

    async def perform(self, console: Console) -> None:
        with open_display(console, self._plan.limit_s) as display:
            self.story = display.story
            self._performance = Performance(self._stage, self._plan, display)
            await self._performance.play()

    def write(self) -> tuple[list[PeerResult], list[Check]]:
        """events.jsonl and loss.png of whatever happened; the results and the verdict."""
        assert self._performance is not None, "nothing was played"
        players = self._performance.players.values()
        logs = {player.name: player.tail.events for player in players}
        write_events(self._stage.events, merge(logs | {"demo": self._performance.events}))
        founder = self._performance.founder.tail.events
        tokens = self._run.model.sequence_tokens
        results = [
            sum_up(p.name, p.peer_id, p.fate, p.tail.events, founder, tokens) for p in players
        ]
        title = "atom demo: a byte-level GPT learns Python's standard library on three peers"
        with contextlib.suppress(OSError):  # the verdict matters more than the picture
            draw_loss(self._stage.plot, founder, self._performance.marks, title)
        losses = [float(event["loss"]) for event in rounds_of(founder)]
        return results, judge(results, losses)
