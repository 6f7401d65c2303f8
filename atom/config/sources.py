"""Where this box reads the run's text and tokenizer.

A run file names paths of the machine that founded the run. On another machine the same names may
stand for private files, and what a peer trains on leaves traces in what it sends: paths that
came from a stranger are never opened. The volunteer says in the peer file where the text is.
"""

from dataclasses import dataclass
from pathlib import Path

from atom.base.errors import ConfigError
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile


@dataclass(frozen=True)
class TextSources:
    """Absolute paths and globs of the text (empty for python-stdlib), and of the tokenizer."""

    paths: tuple[str, ...]
    tokenizer: str
    """"bytes", or an absolute path."""


def text_sources(run: RunFile, peer: PeerFile, run_folder: Path | None) -> TextSources:
    """The peer file's paths if it has any, else the run file's, relative to `run_folder`.

    `run_folder` is None for a run whose file came from a stranger. Raises: ConfigError if a path
    is then needed and the peer file has none.
    """
    paths = run.data.paths if run.data.source == "text" else ()
    if paths and peer.data.paths is not None:
        paths = peer.data.paths
    elif paths:
        paths = tuple(_absolute(path, run_folder, "paths", run) for path in paths)
    tokenizer = run.data.tokenizer
    if tokenizer != "bytes" and peer.data.tokenizer is not None:
        tokenizer = peer.data.tokenizer
    elif tokenizer != "bytes":
        tokenizer = _absolute(tokenizer, run_folder, "tokenizer", run)
    return TextSources(paths, tokenizer)


def _absolute(path: str, run_folder: Path | None, key: str, run: RunFile) -> str:
    if run_folder is not None:
        return str((run_folder / Path(path).expanduser()).absolute())
    example = '["input.txt"]' if key == "paths" else '"tokenizer.json"'
    raise ConfigError(
        f"data.{key}: the run {run.run.name} trains on {path!r} of its founder's machine",
        f"get a copy, write `[data] {key} = {example}` into a peer file, pass it with --peer",
    )
