"""`atom demo`: start peers, kill one, start another, and check their event logs."""

import math
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from atom.cli.demo.peer import FINISHED, DemoPeer, Event, PeerFailed, Stage
from atom.cli.shell.failures import ExitCode, say_error
from atom.cli.shell.signals import raise_on_signals
from atom.cli.shell.terminal import fitting, print_plainly, stdout_console
from atom.config.load import load_run_file
from atom.daemon.console import ending_signals
from atom.swarm.identity import short_id

LIMIT_S, PER_ROUND_S = 240.0, 6.0
"""Time limit of the demo, in seconds: LIMIT_S, and PER_ROUND_S more for each round."""
FIRST_PEERS, VICTIM = 3, 2
STEP_S = 0.3
TOLD_EVERY_ROUNDS = 10
_CURVE_COLUMNS_PER_NAT = 5


@dataclass(frozen=True)
class PeerResult:
    """Result of one peer."""

    name: str
    peer_id: str
    fate: str
    rounds: int
    """Number of committed rounds that the peer contributed to."""
    last: tuple[int, str, str]
    """Round, head and digest (hexadecimal) of its last replica; (0, "", "") without any."""


@dataclass(frozen=True)
class Check:
    """One claim, its result, and the figures behind the result."""

    claim: str
    passed: bool
    figures: str


def run_demo(directory: Path) -> ExitCode:
    """Run the demo in a folder; return OK only if all its claims held.

    Raises:
        StorageError: The folder cannot be used.
    """
    stage = Stage(directory)
    stage.prepare(FIRST_PEERS + 1)
    raise_on_signals()
    run, console = load_run_file(stage.run_file), stdout_console()
    assert run.run.rounds is not None, "the demo ends"
    try:
        with console.status("starting") as status:
            demo = Demo(stage, run.run.rounds, console, status.update)
            try:
                demo.play()
            finally:
                with ending_signals(signal.SIG_IGN):  # an interruption would leave daemons running
                    demo.clear_up()
    except PeerFailed as failure:
        say_error(failure.message, failure.hint)
        return ExitCode.FAULT
    return _verdict(demo, stage.root)


def _verdict(demo: "Demo", root: Path) -> ExitCode:
    founder = demo.peers[0].events
    results = [
        sum_up(peer.name, peer.peer_id, peer.fate, peer.events, founder) for peer in demo.peers
    ]
    checks = judge(results, [float(event["loss"]) for event in rounds_of(founder)])
    print_plainly(results_table(results))
    for check in checks:
        print_plainly(_line(check))
    failed = sum(not check.passed for check in checks)
    if not failed:
        return ExitCode.OK
    what = f"the demo failed: {failed} of {len(checks)} claims did not hold"
    say_error(what, f"the peers' logs are in {root}")
    return ExitCode.FAULT


class Demo:
    """One run of the demo. Call `play`, then `clear_up` in any case."""

    def __init__(
        self, stage: Stage, rounds: int, console: Console, on_line: Callable[[str], None]
    ) -> None:
        """Start nothing yet.

        Args:
            stage: Prepared folder of the demo.
            rounds: Rounds of the run.
            console: Console for the story of the demo.
            on_line: Function that shows the progress, such as a spinner's update.
        """
        self._stage = stage
        self._rounds = rounds
        self._console = console
        self._on_line = on_line
        self._began = time.monotonic()
        self._round = 0
        """Last round that the founder committed."""
        self._training: set[str] = set()
        """Names of peers that have contributed to a round."""
        self.peers: list[DemoPeer] = []

    def play(self) -> None:
        """Run the demo until all peers have ended.

        Raises:
            PeerFailed: A daemon failed, or the rounds take too long.
        """
        self._say("peer 1 founds the run: it tokenises the text and traces the model")
        founder = self._enter("start", str(self._stage.run_file))
        while not (address := founder.join_address):
            self._step()
        for _ in range(FIRST_PEERS - 1):
            self._enter("join", address)
        self._say(f"{FIRST_PEERS - 1} peers join at its address; to watch: atom watch {address}")
        while any(not peer.fate for peer in self.peers):
            self._step()
            fates = [peer.fate for peer in self.peers]
            kill, join = due(self._round, self._rounds, len(self._training), fates)
            if kill:
                victim = self.peers[VICTIM - 1]
                victim.kill()
                self._say(f"{victim.name} is killed after round {self._round}: others continue")
            if join:
                self._say(f"peer {len(self.peers) + 1} joins")
                self._enter("join", address)

    def clear_up(self) -> None:
        """Kill all processes of the demo that still run."""
        for peer in self.peers:
            peer.remove()

    def _enter(self, *arguments: str) -> DemoPeer:
        number = len(self.peers) + 1
        peer = DemoPeer(f"peer {number}", self._stage.state(number))
        self.peers.append(peer)
        peer.start(*arguments, "--peer", str(self._stage.peer_file), "--state", str(peer.state))
        return peer

    def _step(self) -> None:
        """Wait a moment, then read the peers' logs and show new rounds."""
        time.sleep(STEP_S)  # files give no event to wait for
        for peer in self.peers:
            peer.look()
        for event in rounds_of(self.peers[0].events)[self._round :]:
            self._round = event["round"]
            self._show(event)
        if self._elapsed_s() > LIMIT_S + PER_ROUND_S * self._rounds:
            late = next(peer for peer in self.peers if not peer.fate)
            raise late.failure(f"is too slow: it is at round {self._round} of {self._rounds}")

    def _show(self, event: Event) -> None:
        for peer in self.peers:
            if peer.name not in self._training and sequences_of(event, peer.peer_id):
                self._training.add(peer.name)
                self._say(f"{peer.name} trains from round {self._round} on")
        words = f"round {self._round:3} of {self._rounds}   loss {event['loss']:.4f}"
        if self._round % TOLD_EVERY_ROUNDS == 0:
            self._say(f"{words}  {curve(event['loss'])}")
        self._on_line(words)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _say(self, text: str) -> None:
        line = f"{self._elapsed_s():6.1f} s  {text}"
        self._console.print(line, markup=False, soft_wrap=True)


def curve(loss: float) -> str:
    """Return a bar as long as the loss; the bars of successive rounds draw its curve."""
    return "─" * round(min(loss, 8.0) * _CURVE_COLUMNS_PER_NAT) if loss > 0 else ""


def due(round_: int, rounds: int, trained: int, fates: Sequence[str]) -> tuple[bool, bool]:
    """Decide whether to kill a peer (after a quarter of the rounds), and to start one (after half).

    The kill waits until the first peers have all contributed: losing an idle peer shows nothing.

    Args:
        round_: Last committed round.
        rounds: Rounds of the run.
        trained: Number of peers that have contributed to a round.
        fates: Fate of each peer that was started; empty while it runs.

    Returns:
        Whether to kill a peer, and whether to start another.
    """
    kill = trained >= FIRST_PEERS and not fates[VICTIM - 1] and 4 * round_ >= rounds
    return kill, len(fates) == FIRST_PEERS and 2 * round_ >= rounds


def results_table(results: Sequence[PeerResult]) -> Table:
    """Return a table with a row for each peer."""
    rows = [
        {
            "peer": result.name,
            "id": short_id(result.peer_id) if result.peer_id else "-",
            "rounds": f"{result.rounds:,}",
            "digest": result.last[2][:12] or "-",
            "fate": result.fate,
        }
        for result in results
    ]
    return fitting(list(rows[0]), rows, None, words=("peer", "id", "digest", "fate"))


def _line(check: Check) -> Text:
    mark = ("✓ ", "good") if check.passed else ("✗ ", "bad")
    return Text.assemble(mark, check.claim, (f"   {check.figures}", "quiet"))


# ---- checks of the claims, which are pure


def rounds_of(events: Iterable[Event]) -> list[Event]:
    """Return the events of committed rounds in order; of a repeated round, the later event."""
    last = {int(event["round"]): event for event in events if event.get("event") == "round"}
    return [last[number] for number in sorted(last)]


def sequences_of(event: Event, peer_id: str) -> int:
    """Return the number of sequences that a peer contributed to a round."""
    parts = zip(event["members"], event["contributed"], strict=True)
    return sum(sequences for member, sequences in parts if member == peer_id)


def sum_up(
    name: str, peer_id: str, fate: str, events: Sequence[Event], founder: Sequence[Event]
) -> PeerResult:
    """Return the result of one peer.

    Args:
        name: Name of the peer in the demo.
        peer_id: Peer id.
        fate: How the peer ended.
        events: Events of the peer, for its last replica.
        founder: Events of the founder, for the rounds that the peer contributed to.
    """
    rounds = sum(sequences_of(event, peer_id) > 0 for event in rounds_of(founder))
    telling = ("started", "round", "caught-up", "left")
    states = [
        (int(event["round"]), str(event.get("head", "")), str(event["digest"]))
        for event in events
        if event["event"] in telling and event.get("digest")
    ]
    return PeerResult(name, peer_id, fate, rounds, states[-1] if states else (0, "", ""))


def judge(results: Sequence[PeerResult], losses: Sequence[float]) -> list[Check]:
    """Return the checks of all claims of the demo.

    Args:
        results: Result of each peer.
        losses: Loss of each committed round, in order.
    """
    return [_loss_fell(losses), _identical([each for each in results if each.fate == FINISHED])]


def _loss_fell(losses: Sequence[float]) -> Check:
    claim = "the loss fell below half of its first value"
    if not losses:
        return Check(claim, False, "no round was committed")
    first, last = losses[0], losses[-1]
    passed = math.isfinite(last) and last < first / 2
    return Check(claim, passed, f"{first:.4f} → {last:.4f}")


def _identical(survivors: Sequence[PeerResult]) -> Check:
    """Check that at least two peers survived, and that their last replicas are equal."""
    claim, states = "all surviving replicas are bit-identical", {each.last for each in survivors}
    if len(survivors) < 2:
        return Check(claim, False, f"{len(survivors)} survived: nothing to compare")
    round_, _, digest = survivors[0].last
    if len(states) > 1 or round_ == 0:
        ends = (f"{each.name} at round {each.last[0]}" for each in survivors)
        return Check(claim, False, f"replicas differ: {', '.join(ends)}")
    return Check(claim, True, f"{len(survivors)} after round {round_}: {digest[:12]}")
