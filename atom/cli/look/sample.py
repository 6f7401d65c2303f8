"""`atom sample`: text from a run's weights, on a box that may be no peer."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from atom.base.errors import AddressError, StorageError, TrustError
from atom.base.printable import printable
from atom.cli.look.chain_reader import ChainFetcher
from atom.cli.look.excerpts import fetch_some, read_tokenizer
from atom.cli.look.onlooker import identity_in, listed_peer, looked_at
from atom.cli.shell.console import TerminalConsole
from atom.cli.shell.options import parse_trust
from atom.cli.shell.signals import end_at_once_on_signals, run_to_the_end
from atom.config.peer_file import DEVICE_PATTERN
from atom.config.places import default_state_directory
from atom.config.run_file import RunFile
from atom.daemon.fitting.answering import answering
from atom.daemon.model.fetched_weights import cached_folder, fetch_weights
from atom.daemon.model.kept_run import layout_of
from atom.daemon.model.kept_tokenizer import run_tokenizer
from atom.daemon.model.model_source import agreed_run, open_source, source_errors
from atom.daemon.model.sampled import Sampled, require_text, sampled_folder, sampled_run
from atom.daemon.model.shared_text import open_store
from atom.daemon.state_directory import StateDirectory
from atom.models.data.tokenizer import Tokenizer
from atom.models.sampling import Sampling, continuations
from atom.models.source import ModelSource, SourceError
from atom.swarm.records.manifest import Manifest
from atom.swarm.transport.transport import Transport

MOST_TEXTS = 8
"""In one pass."""
_LINES = "\n\t"


@dataclass(frozen=True)
class SampleRequest:
    where: str
    """A run's address, or a folder."""
    prompts: tuple[str, ...]
    tokens: int
    sampling: Sampling
    device: str
    state: Path | None
    trust: str | None


def show_samples(asked: SampleRequest) -> None:
    """Prints the texts. Raises: typer.BadParameter, UserError."""
    _check(asked)
    console = TerminalConsole()
    try:
        sampled = _sampled(asked, console)
        prompts = sampled.read(asked.prompts)
        window = min(sampled.sequence_tokens, max(map(len, prompts)) + asked.tokens - 1)
        weights = partial(console.progress, "loading the weights")
        try:
            with answering(sampled, window, len(prompts), asked.device, weights) as (ask, known):
                known = min(known, sampled.tokenizer.vocabulary_size)
                console.note(f"{sampled.title}; each token is a pass over {window:,} tokens")
                console.close()
                told = continuations(
                    prompts, asked.tokens, window, known, sampled.ends, asked.sampling, ask
                )
                _print(sampled.tokenizer, prompts, told)
        except SourceError as problem:
            raise StorageError(problem.message, problem.hint) from problem
    finally:
        console.close()


def _check(asked: SampleRequest) -> None:
    parse_trust(asked.trust)
    if not re.fullmatch(DEVICE_PATTERN, asked.device):
        what = f"{asked.device!r} is none of auto, cpu, cuda and cuda:N"
        raise typer.BadParameter(what, param_hint="--device")
    if not Path(asked.where).is_dir() and "/run/" not in asked.where:
        raise StorageError(
            f"{asked.where} is no folder, and no address of a run",
            "name a run's ADDRESS, a peer's state directory, or a folder of `atom export`",
        )
    if len(asked.prompts) > MOST_TEXTS:
        what = f"{len(asked.prompts)} prompts, and at most {MOST_TEXTS} go through together"
        raise typer.BadParameter(what, param_hint="PROMPT...")
    for prompt in asked.prompts:
        if not prompt:
            raise typer.BadParameter("it is empty: say how the text begins", param_hint="PROMPT...")
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise typer.BadParameter("it is no UTF-8 text", param_hint="PROMPT...") from None


def _sampled(asked: SampleRequest, console: TerminalConsole) -> Sampled:
    """Raises: UserError."""
    if Path(asked.where).is_dir():
        return sampled_folder(Path(asked.where), asked.trust, console.note)
    return _fetched(asked, console)


def _fetched(asked: SampleRequest, console: TerminalConsole) -> Sampled:
    manifest = run_to_the_end(looked_at(asked.where, asked.state)).manifest
    end_at_once_on_signals("interrupted")
    run, source = _model_of(manifest)
    layout = layout_of(manifest, run, source)
    # The chain is read last: it has to know the states that peers offer, which are their newest.
    swarm = run_to_the_end(looked_at(asked.where, asked.state, chain=True))
    if not swarm.leases:
        raise AddressError("no peer of the run is alive to give its state", "try again later")
    end_at_once_on_signals("interrupted: what was fetched is kept")
    me = identity_in(asked.state) or listed_peer(manifest)
    fetcher = ChainFetcher(manifest, me, swarm.entrances)
    try:
        fetcher.know(swarm.leases)
        states = swarm.ledger.states(manifest.initial_state_digest)
        peers = swarm.alive
        tokenizer = tokenizer_of(manifest, run, fetcher.transport, peers)
        fetching = partial(console.progress, "fetching the weights")
        round_number, weights = fetch_weights(
            manifest, run, layout, states, peers, fetcher.transport, fetching
        )
    finally:
        fetcher.close()
    return sampled_run(run, source, weights, round_number, tokenizer)


def _model_of(manifest: Manifest) -> tuple[RunFile, ModelSource]:
    """Raises: UserError."""
    run = agreed_run(manifest)
    require_text(run)
    if run.model.module is not None:
        raise TrustError(
            "this run's model is code of its owner", "sample a peer's state directory instead"
        )
    with source_errors(run):
        return run, open_source(run, None)


def tokenizer_of(
    manifest: Manifest, run: RunFile, transport: Transport, peers: list[str]
) -> Tokenizer:
    """As a peer here keeps it, or the run's peers give it: then it is kept.
    Raises: UserError."""
    here = StateDirectory(default_state_directory(manifest.run)).tokenizer
    if run.data.tokenizer == "bytes" or here.exists():
        return run_tokenizer(run, here)
    if manifest.text is None:
        raise StorageError(
            "the run has a tokenizer of its own, and it is not here",
            f"put the run's tokenizer.json at {here}, where a peer keeps it",
        )
    folder = cached_folder(manifest)
    store = open_store(manifest.text, folder)
    fetch_some(transport, store, [], peers)
    return read_tokenizer(run, store, folder)


def _print(
    tokenizer: Tokenizer, prompts: Sequence[list[int]], told: Iterator[Mapping[int, int]]
) -> None:
    """The first text as it comes, the others after it."""
    texts = [list(prompt) for prompt in prompts]
    said = 0
    for tokens in told:
        for number, token in tokens.items():
            texts[number].append(token)
        said += _say(tokenizer.decode(texts[0]), said)
    _say(tokenizer.decode(texts[0]) + "\n", said, is_whole=True)
    for tokens_of_text in texts[1:]:
        _say(f"\n{tokenizer.decode(tokens_of_text)}\n", 0, is_whole=True)


def _say(text: str, said: int, is_whole: bool = False) -> int:
    """What of `text` comes after the first `said` signs; how many those are. A sign whose last
    bytes are to come waits for them."""
    new = text[said:] if is_whole else text[said:].rstrip("�")
    typer.echo(printable(new, _LINES), nl=False)
    return len(new)
