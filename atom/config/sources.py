"""Where this box reads the run's text and tokenizer.

A run file names paths of the machine that founded the run. On another machine the same names may
stand for private files, and what a peer trains on leaves traces in what it sends: paths that
came from a stranger are never opened. The volunteer says in the peer file where the text is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atom.base.errors import ConfigError
from atom.base.home import expand_home
from atom.config.peer_file import PeerFile
from atom.config.places import table_place, text_place
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
    paths = run.data.paths if run.data.source == "text" else ()
    if paths and peer.data.paths is not None:
        paths = peer.data.paths
    elif paths:
        paths = tuple(_absolute(path, run_folder, "paths", run, text_place) for path in paths)
    tokenizer = run.data.tokenizer
    if tokenizer != "bytes" and peer.data.tokenizer is not None:
        tokenizer = peer.data.tokenizer
    elif tokenizer != "bytes":
        tokenizer = _absolute(tokenizer, run_folder, "tokenizer", run)
    return TextSources(paths, tokenizer, _table(run, peer, run_folder))


def _table(run: RunFile, peer: PeerFile, run_folder: Path | None) -> str:
    """A hub's name is no path, but what a dataset there names is chosen by whoever owns it: the
    volunteer says yes to it as to a path."""
    if run.data.path is None:
        return ""
    if peer.data.path is not None:
        return peer.data.path
    return _absolute(run.data.path, run_folder, "path", run, table_place)


def _from_folder(path: str, folder: Path) -> str:
    return str((folder / expand_home(path)).absolute())


def _absolute(
    path: str,
    run_folder: Path | None,
    key: str,
    run: RunFile,
    place: Callable[[str, Path], str] = _from_folder,
) -> str:
    if run_folder is not None:
        return place(path, run_folder)
    raise ConfigError(
        f"data.{key}: the run {run.run.name} trains on {path!r} of its founder's machine",
        f"get a copy, and say in a peer file where it is: {key} = … under [data]; then pass that "
        "file with --peer",
    )
