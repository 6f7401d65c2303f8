"""`atom sample`: text from the weights of a state directory or of an exported folder."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import typer

from atom.base.errors import StorageError
from atom.base.units import printable
from atom.cli.shell.console import TerminalConsole
from atom.config.peer_file import DEVICE_PATTERN
from atom.daemon.model.sampled import answering, sampled_folder
from atom.models.data.tokenizer import Tokenizer
from atom.models.sampling import Sampling, continuations

MOST_TEXTS = 8
"""Most prompts that go through the device together."""
_LINES = "\n\t"


def show_samples(
    folder: Path,
    texts: Sequence[str],
    tokens: int,
    sampling: Sampling,
    device: str,
    trust: str | None,
) -> None:
    """Print how a model continues each prompt.

    Args:
        folder: State directory of a peer, or a folder of `atom export`.
        texts: The prompts.
        tokens: Most tokens to add to a prompt.
        sampling: How the next token is chosen.
        device: Device to compute on, as in the peer file.
        trust: Value of `--trust`, KEY:SHA256: the peer id of a run's owner, and the digest of the
            owner's code, which may then be executed. None: no code may.

    Raises:
        typer.BadParameter: An argument is not usable.
        StorageError: The folder does not exist, or holds no model.
        UserError: The model cannot be computed here.
    """
    _check(folder, texts, device)
    with contextlib.closing(TerminalConsole()) as console:
        sampled = sampled_folder(folder, trust, console.note)
        prompts = sampled.read(texts)
        window = min(sampled.sequence_tokens, max(map(len, prompts)) + tokens - 1)
        weights = partial(console.progress, "loading the weights")
        with answering(sampled, window, len(prompts), device, weights) as (ask, known):
            known = min(known, sampled.tokenizer.vocabulary_size)
            console.note(f"{sampled.title}; each token is a pass over {window:,} tokens")
            console.close()
            added = continuations(prompts, tokens, window, known, sampled.ends, sampling, ask)
            _print(sampled.tokenizer, prompts, added)


def _check(folder: Path, texts: Sequence[str], device: str) -> None:
    if not re.fullmatch(DEVICE_PATTERN, device):
        what = f"{device!r} is not auto, cpu, cuda or cuda:N"
        raise typer.BadParameter(what, param_hint="--device")
    if not folder.is_dir():
        raise StorageError(
            f"{folder} is not a folder on this machine",
            "name a peer's state directory, or a folder of `atom export`",
        )
    if len(texts) > MOST_TEXTS:
        what = f"{len(texts)} prompts, but at most {MOST_TEXTS} are possible"
        raise typer.BadParameter(what, param_hint="PROMPT...")
    for prompt in texts:
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise typer.BadParameter("not UTF-8 text", param_hint="PROMPT...") from None


def _print(
    tokenizer: Tokenizer, prompts: Sequence[list[int]], added: Iterator[Mapping[int, int]]
) -> None:
    """Print the first text while it grows, then the other texts as a whole."""
    texts = [list(prompt) for prompt in prompts]
    printed = 0
    for tokens in added:
        for number, token in tokens.items():
            texts[number].append(token)
        printed += _print_new(tokenizer.decode(texts[0]), printed)
    _print_new(tokenizer.decode(texts[0]) + "\n", printed, is_whole=True)
    for tokens_of_text in texts[1:]:
        _print_new(f"\n{tokenizer.decode(tokens_of_text)}\n", 0, is_whole=True)


def _print_new(text: str, printed: int, is_whole: bool = False) -> int:
    """Print the new part of `text`, after its first `printed` characters, and return its length.

    A character at the end whose bytes are incomplete is printed by a later call.
    """
    new = text[printed:] if is_whole else text[printed:].rstrip("�")
    typer.echo(printable(new, _LINES), nl=False)
    return len(new)
