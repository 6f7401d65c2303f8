"""`atom demo`: start peers, kill one, start another, and check their event logs."""

import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.status import Status
from rich.text import Text

from atom.base.files import expand_home
from atom.cli.demo.peer import FINISHED, DemoPeer, Event, PeerFailed, prepare
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
_STATES = ("started", "round", "caught-up", "left")
"""Kinds of events that have the digest of the peer's replica."""


class Check(NamedTuple):
    """One claim, its result, and the figures behind the result."""

    claim: str
    passed: bool
    figures: str


def run_demo(directory: Path) -> ExitCode:
    """Run the demo in a folder; return OK only if all its claims held.

    Raises:
        StorageError: The folder cannot be used.
    """
    root = expand_home(directory).absolute()
    peers = prepare(root, FIRST_PEERS + 1)
    raise_on_signals()
    try:
        with stdout_console().status("starting") as status:
            try:
                Demo(peers, root / "run.toml", status).play()
            finally:
                with ending_signals(signal.SIG_IGN):  # an interruption would leave daemons running
                    for peer in peers:
                        peer.remove()
    except PeerFailed as failure:
        say_error(failure.message, failure.hint)
        return ExitCode.FAULT
    return _verdict(peers, root)


def _verdict(peers: Sequence[DemoPeer], root: Path) -> ExitCode:
    """Print the result of each peer, and of each check."""
    rounds = rounds_of(peers[0].events)
    rows = [
        {
            "peer": peer.name,
            "id": short_id(peer.peer_id),
            "rounds": f"{sum(sequences_of(event, peer.peer_id) > 0 for event in rounds):,}",
            "digest": last_state(peer.events)[2][:12] or "-",
            "fate": peer.fate,
        }
        for peer in peers
    ]
    print_plainly(fitting(list(rows[0]), rows, None, words=("peer", "id", "digest", "fate")))
    survivors = [last_state(peer.events) for peer in peers if peer.fate == FINISHED]
    checks = judge(survivors, [float(event["loss"]) for event in rounds])
    for claim, passed, figures in checks:
        mark = ("✓ ", "good") if passed else ("✗ ", "bad")
        print_plainly(Text.assemble(mark, claim, (f"   {figures}", "quiet")))
    failed = sum(not check.passed for check in checks)
    if not failed:
        return ExitCode.OK
    what = f"the demo failed: {failed} of {len(checks)} claims did not hold"
    say_error(what, f"the peers' logs are in {root}")
    return ExitCode.FAULT


class Demo:
    """One run of the demo."""

    def __init__(self, peers: Sequence[DemoPeer], run_file: Path, status: Status) -> None:
        """Start nothing yet.

        Args:
            peers: Prepared peers; the last one joins late.
            run_file: Run file of the demo.
            status: Line with the progress, below the story of the demo.
        """
        self._peers, self._run_file, self._status = peers, run_file, status
        rounds = load_run_file(run_file).run.rounds
        assert rounds is not None, "the demo ends"
        self._rounds = rounds
        self._began = time.monotonic()
        self._round = 0
        """Last round that the founder committed."""
        self._training: set[str] = set()
        """Names of peers that have contributed to a round."""

    def play(self) -> None:
        """Run the demo until all peers have ended.

        Raises:
            PeerFailed: A daemon failed, or the rounds take too long.
        """
        self._say("peer 1 founds the run: it tokenises the text and traces the model")
        founder, victim = self._peers[0], self._peers[VICTIM - 1]
        founder.start("start", str(self._run_file))
        address = founder.join_address()
        self._say(f"{FIRST_PEERS - 1} peers join at its address; to watch: atom watch {address}")
        waiting = list(self._peers[FIRST_PEERS:])
        for peer in self._peers[1:FIRST_PEERS]:
            peer.start("join", address)
        while waiting or any(not peer.fate for peer in self._peers):
            self._step()
            # Losing an idle peer would show nothing.
            all_train = len(self._training) >= FIRST_PEERS
            if all_train and not victim.fate and 4 * self._round >= self._rounds:
                victim.kill()
                self._say(f"{victim.name} is killed after round {self._round}: others continue")
            if waiting and 2 * self._round >= self._rounds:
                self._say(f"{waiting[0].name} joins")
                waiting.pop().start("join", address)

    def _step(self) -> None:
        """Wait a moment, then read the peers' logs and show new rounds."""
        time.sleep(STEP_S)  # files give no event to wait for
        for peer in self._peers:
            peer.look()
        for event in rounds_of(self._peers[0].events)[self._round :]:
            self._round = event["round"]
            self._show(event)
        if self._elapsed_s() > LIMIT_S + PER_ROUND_S * self._rounds:
            late = next(peer for peer in self._peers if not peer.fate)
            raise late.failure(f"is too slow: it is at round {self._round} of {self._rounds}")

    def _show(self, event: Event) -> None:
        for peer in self._peers:
            if peer.name not in self._training and sequences_of(event, peer.peer_id):
                self._training.add(peer.name)
                self._say(f"{peer.name} trains from round {self._round} on")
        words = f"round {self._round:3} of {self._rounds}   loss {event['loss']:.4f}"
        if self._round % TOLD_EVERY_ROUNDS == 0:
            # The bars of successive rounds draw the curve of the loss.
            self._say(f"{words}  {'─' * round(event['loss'] * _CURVE_COLUMNS_PER_NAT)}")
        self._status.update(words)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _say(self, text: str) -> None:
        line = f"{self._elapsed_s():6.1f} s  {text}"
        self._status.console.print(line, markup=False, soft_wrap=True)


# ---- checks of the claims, which are pure


def rounds_of(events: Iterable[Event]) -> list[Event]:
    """Return the events of committed rounds in order; of a repeated round, the later event."""
    last = {int(event["round"]): event for event in events if event.get("event") == "round"}
    return [last[number] for number in sorted(last)]


def sequences_of(event: Event, peer_id: str) -> int:
    """Return the number of sequences that a peer contributed to a round."""
    parts = zip(event["members"], event["contributed"], strict=True)
    return sum(sequences for member, sequences in parts if member == peer_id)


def last_state(events: Sequence[Event]) -> tuple[int, str, str]:
    """Return round, head and digest of a peer's last replica; (0, "", "") if it had none."""
    for event in reversed(events):
        if event["event"] in _STATES and event.get("digest"):
            return int(event["round"]), str(event.get("head", "")), str(event["digest"])
    return 0, "", ""


def judge(survivors: Sequence[tuple[int, str, str]], losses: Sequence[float]) -> list[Check]:
    """Return the checks of all claims of the demo.

    Args:
        survivors: `last_state` of each peer that survived, at least two for a comparison.
        losses: Loss of each committed round, in order.
    """
    fell = bool(losses) and losses[-1] < losses[0] / 2
    curve = f"{losses[0]:.4f} → {losses[-1]:.4f}" if losses else "no round was committed"
    ends = ", ".join(f"{digest[:12]} after round {number}" for number, _, digest in survivors)
    same = len(survivors) > 1 and len(set(survivors)) == 1 and survivors[0][0] > 0
    said = (
        f"{len(survivors)} after round {survivors[0][0]}: {survivors[0][2][:12]}" if same else ends
    )
    return [
        Check("the loss fell below half of its first value", fell, curve),
        Check("all surviving replicas are bit-identical", same, said),
    ]
