"""What README.md tells somebody to do who founds a run with a second peer on the same machine."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
HEADING = "## Found a run"
PORT_KEYS = ("listen", "data_port")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FILE_NAME = re.compile(r"# (\S+)\n")


@dataclass(frozen=True)
class Steps:
    """In the order in which they are told."""

    files: dict[str, str]
    """Name → text: to be written into the clone."""
    prepare: tuple[str, ...]
    start: str
    """It goes on for as long as the run does, and prints the address."""
    join: str
    """In another terminal."""

    @property
    def ports(self) -> list[int]:
        """Those that the founder listens on."""
        told = [tomllib.loads(text)["network"] for text in self.files.values()]
        return [int(str(each[key]).rpartition(":")[2]) for each in told for key in PORT_KEYS]

    @property
    def second_state(self) -> str:
        """Where the peer that joins keeps what it has."""
        return self.join.partition("--state ")[2]

    def join_at(self, address: str) -> str:
        return self.join.replace("ADDRESS", address)


def read_steps(text: str) -> Steps:
    """Raises: ValueError where the page does not say it in this order any more."""
    _, _, below = text.partition(f"\n{HEADING}\n")
    blocks = _FENCED.findall(below.partition("\n## ")[0])
    files = {_named(block): block for language, block in blocks if language == "toml"}
    shell = [tuple(block.splitlines()) for language, block in blocks if not language]
    if not files or len(shell) < 2 or len(shell[1]) != 1:
        raise ValueError(f"{HEADING}: a file, commands for the founder, and one for who joins")
    (*prepare, start), (join,) = shell[0], shell[1]
    if "atom start" not in start or not {"ADDRESS", "--state"} <= set(join.split()):
        raise ValueError(f"{HEADING}: {start!r} does not start the run that {join!r} joins")
    return Steps(files, tuple(prepare), start, join)


def _named(block: str) -> str:
    """Raises: ValueError."""
    found = _FILE_NAME.match(block)
    if found is None:
        raise ValueError(f"{HEADING}: a file whose first line does not name it: {block!r}")
    return found[1]
