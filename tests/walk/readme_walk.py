"""Walk from `git clone` to the first committed round with one other peer, by README.md alone.

`make walk` does it: in an empty folder, with an empty home and a bare PATH, it clones the last
commit of this checkout and runs what the page says. It ends with an error where that takes more
than five minutes. The network to the package registry is part of that time.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

README = Path(__file__).parents[2] / "README.md"
HEADING = "## Found a run"
MOST_S = 300.0
PATIENCE_S = 900.0
"""Time limit of each step; beyond it the walk is stuck."""
LEAVING_S = 75.0
POLL_S = 0.05
USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
_REGISTRY = ("PIP_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FILE_NAME = re.compile(r"# (\S+)\n")


class Steps(NamedTuple):
    """Commands of the page, in this order."""

    file_name: str
    file_text: str
    prepare: tuple[str, ...]
    start: str
    """Command that runs for as long as the run does, and prints the address."""
    join: str
    """Command for another terminal, with ADDRESS and its own state directory."""


def read_steps(text: str) -> Steps:
    """Return the steps of README.md. Raises: ValueError if the page has other commands."""
    blocks = _FENCED.findall(text.partition(f"\n{HEADING}\n")[2].partition("\n## ")[0])
    (file_text,) = [block for language, block in blocks if language == "toml"]
    (*prepare, start), (join,) = [block.splitlines() for language, block in blocks if not language][
        :2
    ]
    named = _FILE_NAME.match(file_text)
    if not named or "atom start" not in start or not {"ADDRESS", "--state"} <= set(join.split()):
        raise ValueError(f"{HEADING}: {file_text!r}, {start!r} and {join!r} do not go together")
    return Steps(named[1], file_text, tuple(prepare), start, join)


class Terminal:
    """A shell in one folder, whose home is empty."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._folder = folder
        self._environment = bare_environment(home)

    def do(self, command: str) -> str:
        """stdout, once it has ended. Raises: SystemExit if it fails."""
        began = time.monotonic()
        done = subprocess.run(
            command, shell=True, cwd=self._folder, env=self._environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{command}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
        tell(command, began)
        return done.stdout

    @contextmanager
    def running(self, command: str) -> Iterator[subprocess.Popen[str]]:
        """A daemon; Ctrl-C ends it with the block. Raises: SystemExit unless it ends well."""
        process = subprocess.Popen(
            f"exec {command}", shell=True, cwd=self._folder, env=self._environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
            process.send_signal(signal.SIGINT)
            if code := process.wait(LEAVING_S):
                sys.exit(f"{command}\nended with {code}")
        finally:
            process.kill()
            process.wait()


def bare_environment(home: Path) -> dict[str, str]:
    """Return the environment of a newly logged-in user, with access to the package registry."""
    ours = {key: value for key, value in os.environ.items() if key.upper().startswith(_REGISTRY)}
    settings = Path.home() / ".config" / "pip" / "pip.conf"
    if settings.exists():
        ours.setdefault("PIP_CONFIG_FILE", str(settings))
    fits = any(shutil.which(f"python3.{minor}", path=USUAL_PATH) for minor in (11, 12))
    path = USUAL_PATH if fits else f"{USUAL_PATH}:{sys.base_prefix}/bin"
    return ours | {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8"}


def tell(what: str, began: float) -> None:
    print(f"{time.monotonic() - began:7.1f} s  {what}", flush=True)  # noqa: T201


def until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Raises: SystemExit if the process ends, or that is never so."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"{process.args}\nended with {process.poll()}")
        time.sleep(POLL_S)  # a program of its own: it tells of itself in files alone


def rounds_together(events: Path) -> list[int]:
    """Committed rounds in which two peers had a part, as one of them wrote down."""
    if not events.exists():
        return []
    lines = events.read_text(encoding="utf-8").splitlines(keepends=True)
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    return [e["round"] for e in told if e["event"] == "round" and len(e["members"]) == 2]


def walk(root: Path) -> float:
    """The seconds that it took. Raises: SystemExit where the page leads nowhere."""
    began, clone = time.monotonic(), root / "atom"
    (root / "home").mkdir()
    Terminal(root, root / "home").do(f"git clone --quiet {README.parent} {clone}")
    steps, terminal = read_steps((clone / README.name).read_text()), Terminal(clone, root / "home")
    (clone / steps.file_name).write_text(steps.file_text)
    for command in steps.prepare:
        terminal.do(command)
    with terminal.running(steps.start) as founder:
        assert founder.stdout is not None
        address = founder.stdout.readline().removeprefix("join: ").strip()
        with terminal.running(steps.join.replace("ADDRESS", address)) as joiner:
            events = clone / steps.join.partition("--state ")[2] / "events.jsonl"
            until(joiner, lambda: bool(rounds_together(events)))
            first, took_s = rounds_together(events)[0], time.monotonic() - began
            tell(f"round {first} with both", began)
            told = json.loads(terminal.do(f".venv/bin/atom contributions {address} --json"))
            if len(told["peers"]) != 2 or max(p["first_round"] for p in told["peers"]) > first:
                sys.exit(f"the chain does not certify two peers in round {first}: {told}")
    return took_s


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="atom-walk-") as root:
        took_s = walk(Path(root))
    if took_s > MOST_S:
        sys.exit(f"that took {took_s:.0f} s; {MOST_S:.0f} s at most")


if __name__ == "__main__":
    main()
