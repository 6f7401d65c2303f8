"""From `git clone` to the first committed round with one other peer, by README.md alone.

`make walk` does it: in an empty folder, with an empty home and a bare PATH, it clones the last
commit of this checkout and runs what the page says. It ends with an error where that takes more
than five minutes. The network to the package registry is part of that time.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from readme_steps import README, read_steps

MOST_S = 300.0
PATIENCE_S = 900.0
"""For each thing; beyond it something is stuck."""
LEAVING_S = 75.0
POLL_S = 0.05
USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
_REGISTRY = ("PIP_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_")


class Walk:
    """One walk in `root`, and its clock."""

    def __init__(self, root: Path) -> None:
        self.clone = root / "atom"
        self._home = root / "home"
        self._home.mkdir()
        self._environment = bare_environment(self._home)
        self.began = self._lap = time.monotonic()

    def tell(self, what: str) -> None:
        now = time.monotonic()
        print(f"{now - self._lap:7.1f} s  {what}", flush=True)  # noqa: T201
        self._lap = now

    def do(self, command: str, folder: Path | None = None) -> str:
        """stdout, once it has ended. Raises: SystemExit if it fails."""
        done = subprocess.run(
            command, shell=True, cwd=folder or self.clone, env=self._environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{command}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    @contextmanager
    def running(self, command: str, name: str) -> Iterator["Daemon"]:
        """A daemon in a terminal of its own; Ctrl-C ends it with the block."""
        with (self.clone.parent / f"{name}.err").open("w+") as said:
            process = subprocess.Popen(
                f"exec {command}", shell=True, cwd=self.clone, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True,
                start_new_session=True,
            )  # fmt: skip
            daemon = Daemon(command, process, Path(said.name))
            try:
                yield daemon
                daemon.leave()
            finally:
                process.kill()
                process.wait()


class Daemon:
    """`atom start` or `atom join`."""

    def __init__(self, command: str, process: subprocess.Popen[str], said: Path) -> None:
        self._command = command
        self._process = process
        self._said = said

    def first_line(self) -> str:
        """Raises: SystemExit if it ends before."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return line.strip() or self._fail()

    def until(self, condition: Callable[[], bool]) -> None:
        """Raises: SystemExit if it ends, or that is never so."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._fail()
            time.sleep(POLL_S)

    def leave(self) -> None:
        """As Ctrl-C. Raises: SystemExit unless it ends well."""
        self._process.send_signal(signal.SIGINT)
        if self._process.wait(LEAVING_S):
            self._fail()

    def _fail(self) -> str:
        code = self._process.poll()
        sys.exit(f"{self._command}\nended with {code}\n{self._said.read_text()}")


def bare_environment(home: Path) -> dict[str, str]:
    """What somebody has who has just logged in, and the way to the package registry."""
    ours = {key: value for key, value in os.environ.items() if key.upper().startswith(_REGISTRY)}
    settings = Path.home() / ".config" / "pip" / "pip.conf"
    if settings.exists():
        ours.setdefault("PIP_CONFIG_FILE", str(settings))
    fits = any(shutil.which(f"python3.{minor}", path=USUAL_PATH) for minor in (11, 12))
    path = USUAL_PATH if fits else f"{USUAL_PATH}:{sys.base_prefix}/bin"
    return ours | {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8"}


def require_free(ports: list[int]) -> None:
    """Raises: SystemExit, before minutes are spent on what cannot end well."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as problem:
                sys.exit(f"README.md has the founder listen on port {port}: {problem.strerror}")


def rounds_together(events: Path) -> list[int]:
    """Committed rounds in which two peers had a part, as one of them wrote down."""
    if not events.exists():
        return []
    lines = events.read_text(encoding="utf-8").splitlines(keepends=True)
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    return [e["round"] for e in told if e["event"] == "round" and len(e["members"]) == 2]


def walk(root: Path) -> float:
    """The seconds that it took. Raises: SystemExit where the page leads nowhere."""
    walker = Walk(root)
    walker.do(f"git clone --quiet {README.parent} {walker.clone}", root)
    walker.tell("git clone")
    steps = read_steps((walker.clone / README.name).read_text(encoding="utf-8"))
    require_free(steps.ports)
    for name, text in steps.files.items():
        (walker.clone / name).write_text(text, encoding="utf-8")
    for command in steps.prepare:
        walker.do(command)
        walker.tell(command)
    with ExitStack() as stack:
        founder = stack.enter_context(walker.running(steps.start, "founder"))
        address = founder.first_line().removeprefix("join: ")
        walker.tell(f"{steps.start}: its address")
        joiner = stack.enter_context(walker.running(steps.join_at(address), "joiner"))
        events = walker.clone / steps.second_state / "events.jsonl"
        joiner.until(lambda: bool(rounds_together(events)))
        first = rounds_together(events)[0]
        walker.tell(f"{steps.join}: round {first}, with both")
        took_s = time.monotonic() - walker.began
        check_certified(walker, address, first)
    return took_s


def check_certified(walker: Walk, address: str, first: int) -> None:
    """Anybody sees in the chain that both had a part. Raises: SystemExit."""
    told = json.loads(walker.do(f".venv/bin/atom contributions {address} --json"))
    if len(told["peers"]) != 2 or max(each["first_round"] for each in told["peers"]) > first:
        sys.exit(f"the chain does not certify two peers in round {first}: {told['peers']}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="atom-walk-") as root:
        took_s = walk(Path(root))
    print(f"{took_s:7.1f} s  in all; {MOST_S:.0f} s at most")  # noqa: T201
    if took_s > MOST_S:
        sys.exit(1)


if __name__ == "__main__":
    main()
