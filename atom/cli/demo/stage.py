"""The demo's folder: claimed, emptied only if it is one of ours, and what lies where in it."""

import importlib.resources
import re
import shutil
from pathlib import Path
from typing import IO

from atom.base.errors import StorageError
from atom.base.held_file import is_claimed
from atom.base.home import expand_home

_MARKER = ".atom-demo"
_ELSEWHERE = "name another folder with --directory DIR"
_PEER_FILE = """\
# Every peer of the demo: one thread each, reachable from this machine alone.
[device]
kind = "cpu"
memory = "16 MiB"             # so little that the model goes through it in four pieces
cpu_threads = 1
slot = "10 s"                 # beside a volunteer's own daemon: nobody waits for long

[network]
listen = "127.0.0.1:0"
"""


class Stage:
    """Paths below `root`; `claim` before using any of them."""

    def __init__(self, root: Path) -> None:
        self.root = expand_home(root).absolute()
        self.run_file = self.root / "run.toml"
        self.peer_file = self.root / "peer.toml"
        self._tokens = self.root / "tokens"
        self._lock: IO[str] | None = None

    def claim(self, rounds: int | None) -> None:
        """Empties the folder and writes the files that the peers read.

        Raises: StorageError if it holds something else, or another demo uses it.
        """
        try:
            self._make_ours()
            self._clear()
            self.run_file.write_text(run_text(rounds), encoding="utf-8")
            self.peer_file.write_text(_PEER_FILE, encoding="utf-8")
            self._tokens.mkdir()
        except OSError as problem:
            self.release()
            what = f"cannot use {self.root} for the demo: {problem.strerror}"
            raise StorageError(what, _ELSEWHERE) from None

    def state(self, number: int) -> Path:
        """A peer's new state directory. It shares the tokens: the text is tokenised once."""
        state = self.root / f"peer-{number}"
        state.mkdir()
        (state / "tokens").symlink_to(self._tokens)
        return state

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _make_ours(self) -> None:
        """Raises: OSError, StorageError."""
        self.root.mkdir(parents=True, exist_ok=True)
        marker = self.root / _MARKER
        if any(self.root.iterdir()) and not marker.exists():
            what = f"{self.root} is not empty, and no demo wrote what it holds"
            raise StorageError(what, _ELSEWHERE)
        self._lock = marker.open("a")
        if not is_claimed(self._lock, marker):
            self.release()
            raise StorageError(f"another demo runs in {self.root}", f"wait for it, or {_ELSEWHERE}")

    def _clear(self) -> None:
        for path in self.root.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _MARKER:
                path.unlink()


def run_text(rounds: int | None) -> str:
    """The demo's run file; with another number of rounds its warmup keeps its share of them."""
    packaged = importlib.resources.files("atom.cli.demo").joinpath("demo.toml")
    text = packaged.read_text(encoding="utf-8")
    if rounds is None:
        return text
    before, warmup = _number(text, "rounds"), _number(text, "warmup_rounds")
    text = _with_number(text, "rounds", rounds)
    return _with_number(text, "warmup_rounds", warmup * rounds // before)


def _number(text: str, key: str) -> int:
    match = re.search(rf"(?m)^{key} = ([0-9]+)", text)
    assert match is not None, f"the demo's run file says nothing about {key}"
    return int(match[1])


def _with_number(text: str, key: str, value: int) -> str:
    return re.sub(rf"(?m)^({key} = )[0-9]+", rf"\g<1>{value}", text)
