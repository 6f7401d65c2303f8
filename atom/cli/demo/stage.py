"""The demo's folder: emptied only if it is one of ours, and what lies where in it."""

import importlib.resources
import re
import shutil
from pathlib import Path

from atom.base.errors import StorageError
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
    """Paths below `root`; `prepare` before using any of them."""

    def __init__(self, root: Path) -> None:
        self.root = expand_home(root).absolute()
        self.run_file = self.root / "run.toml"
        self.peer_file = self.root / "peer.toml"
        self._tokens = self.root / "tokens"

    def prepare(self, rounds: int | None) -> None:
        """Empties the folder and writes the files that the peers read. Raises: StorageError if it
        holds something else."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._clear()
            (self.root / _MARKER).touch()
            self.run_file.write_text(run_text(rounds), encoding="utf-8")
            self.peer_file.write_text(_PEER_FILE, encoding="utf-8")
            self._tokens.mkdir()
        except OSError as problem:
            what = f"cannot use {self.root} for the demo: {problem.strerror}"
            raise StorageError(what, _ELSEWHERE) from None

    def state(self, number: int) -> Path:
        """A peer's new state directory. It shares the tokens: the text is tokenised once."""
        state = self.root / f"peer-{number}"
        state.mkdir()
        (state / "tokens").symlink_to(self._tokens)
        return state

    def _clear(self) -> None:
        """Raises: OSError, StorageError."""
        there = list(self.root.iterdir())
        if there and self.root / _MARKER not in there:
            what = f"{self.root} is not empty, and no demo wrote what it holds"
            raise StorageError(what, _ELSEWHERE)
        for path in there:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _MARKER:
                path.unlink()


def run_text(rounds: int | None) -> str:
    """The demo's run file; with another number of rounds a fifth of them warm up."""
    packaged = importlib.resources.files("atom.cli.demo").joinpath("demo.toml")
    text = packaged.read_text(encoding="utf-8")
    if rounds is None:
        return text
    text = re.sub(r"(?m)^rounds = \d+", f"rounds = {rounds}", text)
    return re.sub(r"(?m)^warmup_rounds = \d+", f"warmup_rounds = {rounds // 5}", text)
