"""Where this box reads the run's text and tokenizer.

A run file names paths of the machine that founded the run. On another machine the same names may
stand for private files, and what a peer trains on leaves traces in what it sends: paths that
came from a stranger are never opened. The volunteer says in the peer file where the text is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atom.base.errors import ConfigError
from atom.config.peer_file import PeerFile
from atom.config.places import table_place, text_place, tokenizer_place
from atom.config.run_file import RunFile


@dataclass(frozen=True)
class TextSources:
    """Absolute paths and globs of the text (empty for python-stdlib), and of the tokenizer."""

    paths: tuple[str, ...]
    tokenizer: str
    """"bytes", or an absolute path."""
    table: str = ""
    """For datasets: an absolute folder, or OWNER/NAME of the hub."""


def text_sources(run: RunFile, peer: PeerFile, run_folder: Path | None) -> TextSources:
    """The peer file's paths if it has any, else the run file's, relative to `run_folder`.

    `run_folder` is None for a run whose file came from a stranger. Raises: ConfigError if a path
    is then needed and the peer file has none.
    """

    def founders(key: str, path: str, place: Callable[[str, Path], str]) -> str:
        if run_folder is not None:
            return place(path, run_folder)
        raise ConfigError(
            f"data.{key}: the run {run.run.name} trains on {path!r} of its founder's machine",
            f"get a copy, and say in a peer file where it is: {key} = … under [data]; then pass "
            "that file with --peer",
        )

    data, mine = run.data, peer.data
    paths, tokenizer, table = data.paths, data.tokenizer, data.path or ""
    if paths:
        paths = mine.paths or tuple(founders("paths", path, text_place) for path in paths)
    if tokenizer != "bytes":
        tokenizer = mine.tokenizer or founders("tokenizer", tokenizer, tokenizer_place)
    if table:  # a hub's name is no path, but whoever owns it there chooses what it stands for
        table = mine.path or founders("path", table, table_place)
    return TextSources(paths, tokenizer, table)
