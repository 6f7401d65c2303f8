"""Becoming a peer of a run: a founder builds the run from a run file, a joiner from the manifest.

Both build the run's model, text and replica on this machine. The founder computes the state of
round 0 and signs the manifest; a joiner compares what it built with the manifest.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atom.base.clock import Clock
from atom.base.errors import (
    AddressError,
    ConfigError,
    MismatchError,
    ModelError,
    PeerRefused,
    StorageError,
)
from atom.config.load import normalised_run_text, pinned_run
from atom.config.run_file import PinnedRun, RunFile
from atom.config.sources import text_sources
from atom.daemon.model.pinning import agreed_run, pin
from atom.daemon.model.recipe import (
    Recipe,
    check_recipe,
    open_source,
    refuse_versions,
    write_recipe,
)
from atom.daemon.model.round_zero import begin, begins_from_given
from atom.daemon.model.sampled import wanted_prompts
from atom.daemon.model.texts import (
    Texts,
    check_data,
    comes_through_the_swarm,
    described,
    open_samples,
    open_store,
    read_texts,
    shared_texts,
    what_comes,
)
from atom.daemon.model.weight_files import WeightFiles
from atom.daemon.peer.box import Box
from atom.daemon.peer.building import build_replica
from atom.daemon.state_directory import write_atomically
from atom.models.data.samples import Samples
from atom.models.data.tokenizer import borders
from atom.models.module_source import OwnCode
from atom.models.sampling import Prompts
from atom.swarm.chain.commit import Head
from atom.swarm.records.manifest import (
    DataAmount,
    Manifest,
    PackageVersion,
    decode_manifest,
    encode_manifest,
    first_head,
    manifest_digest,
)
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.piece_store import PieceStore
from atom.training.replica.replica import Replica
from atom.training.storage.disk import write_tensors
from atom.training.storage.run_storage import STILL, write_snapshot


@dataclass(frozen=True)
class Membership:
    """The run's side of a peer: the manifest that all peers share, and our replica of the model."""

    manifest: Manifest
    record: bytes
    """Manifest with its owner's signature, as it is published in the DHT again and again."""
    recipe: Recipe
    samples: Samples
    replica: Replica
    prompts: Prompts | None
    """Prompts of [sample] in the peer file, for texts that the replica writes; None: no texts."""
    code: OwnCode | None
    """Source file of the model, to be served to other peers; None: the run has no own code."""
    weights: Path | None
    """Folder with the weights that the run began from, as named by `--from`; None: no folder."""
    text: PieceStore | None
    """Store of the run's text as it arrives from other peers; None: this peer has a copy."""

    @property
    def run(self) -> PinnedRun:
        """Run that all peers share."""
        return self.recipe.run

    @property
    def run_id(self) -> bytes:
        """Digest of the manifest, by which peers recognise that they belong to one run."""
        return manifest_digest(self.manifest)

    @property
    def genesis(self) -> Head:
        """Head of round 0, which the manifest determines."""
        return first_head(self.manifest)


@dataclass(frozen=True)
class PeerContext:
    """Objects that all parts of a running peer share."""

    box: Box
    member: Membership
    clock: Clock
    """Monotonic clock."""
    report: Callable[[str | BaseException], None]
    """Function that takes a line for the owner, or the failure of a part, which cannot go on.

    Thread-safe.
    """


def found_run(run: RunFile, folder: Path, box: Box, weights: Path | None = None) -> Membership:
    """Found the run, or continue it if it was founded in this state directory.

    Args:
        run: the run file's content, not yet pinned.
        folder: folder of the run file.
        box: this machine's side, whose state directory is locked.
        weights: folder with weights to begin from; None: the run's seed.

    Raises:
        ConfigError: the run file, the peer file or the weights cannot be used.
        StorageError: the disk is full, or files in the state directory are damaged.
        MismatchError: the run file or the data differ from the run that was founded here.
        ModelError: the model cannot be traced, or its sub-models compute something else.
        DeviceError: a device does not exist or cannot be used.
    """
    kept, known = None, read_manifest(box)
    if known is not None:
        check_founder(known[0], run.run.name, box)
        kept = pinned_run(known[0].run_file)
    given = begins_from_given(weights, kept)  # raises now, and not after hours of tokenising
    if kept is None and not given and run.train is not None and run.model.weights is None:
        raise ConfigError("[train] would freeze random weights", "name a model: --from FOLDER")
    pinned, code, texts = pin(
        run, folder, box.peer, box.state.tokens, box.console.progress, given, kept
    )
    if kept not in (None, pinned):
        raise MismatchError(
            f"the run file or its model has changed since the run was founded in {box.state.root}",
            "undo the change, or found a new run with another name or --state DIR",
        )
    return _member(pinned, texts, code, box, weights, known)


def enter_run(
    manifest: Manifest,
    record: bytes,
    code: OwnCode | None,
    box: Box,
    weights: Path | None = None,
    before_building: Callable[[Recipe], None] = lambda recipe: None,
) -> Membership:
    """Build the run of a manifest on this machine, and record the manifest as this peer's run.

    Args:
        manifest: the run's manifest, verified by the caller.
        record: the manifest with its owner's signature.
        code: the run's own code, which is executed; None: the run has none.
        box: this machine's side, whose state directory is locked.
        weights: folder with the weights that the run began from; None: no folder.
        before_building: called with the traced model before memory is allocated for it.

    Raises:
        MismatchError: this installation, or our copy of the text, differs from the run's.
        UserError: as `found_run`.
    """
    run = run_of(manifest, box)
    if weights is not None:
        WeightFiles.open(weights)  # raises now, and not only after the model is traced
    texts = None if run.data.source == "module" else _joiners_texts(run, manifest, box)
    try:
        known = manifest, record
        member = _member(run, texts, code, box, weights, known, before_building)
    except (ConfigError, ModelError) as problem:
        # The cause may be another version of a library, which does not know the model.
        refuse_versions(manifest.versions, problem)
        raise
    write_atomically(box.state.manifest, record)
    return member


def read_manifest(box: Box) -> tuple[Manifest, bytes] | None:
    """Return the manifest in the state directory, and its record signed by the run's owner.

    Returns:
        (manifest, record), or None if the directory belongs to no run yet.

    Raises:
        StorageError: the file cannot be read, or is damaged.
    """
    path = box.state.manifest
    try:
        record = path.read_bytes()
        return decode_manifest(record, None), record
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise StorageError(
            f"{path} cannot be read: {problem.strerror or problem}",
            "check its permissions and its disk, or choose another directory with --state DIR",
        ) from problem
    except PeerRefused as problem:
        raise StorageError(
            f"{path} is damaged, or was written by another version of Atom ({problem})",
            "delete it, then join the run again, or choose another directory with --state DIR",
        ) from problem


def check_founder(manifest: Manifest, run_name: str, box: Box) -> None:
    """Raise unless this peer founded the run `run_name`, whose manifest its state directory has.

    Raises:
        StorageError: the manifest is of a run with another name.
        AddressError: another peer founded the run.
    """
    if manifest.run != run_name:
        raise StorageError(
            f"{box.state.root} holds the run {manifest.run!r}, not {run_name!r}",
            "choose another directory with --state DIR",
        )
    if manifest.owner != box.identity.peer_id:
        raise AddressError(
            f"the run in {box.state.root} was founded by another peer",
            "take part with `atom join ADDRESS`, or found a new run with another --state DIR",
        )


def run_of(manifest: Manifest, box: Box) -> PinnedRun:
    """Return the run that a (verified) manifest describes.

    Raises:
        ConfigError: its run file is not valid.
        MismatchError: the manifest contradicts its run file.
        StorageError: this state directory belongs to another run.
    """
    known = read_manifest(box)
    if known is not None and manifest_digest(known[0]) != manifest_digest(manifest):
        raise StorageError(
            f"{box.state.root} belongs to another run, {known[0].run!r}",
            "choose another directory with --state DIR",
        )
    return agreed_run(manifest)


def _joiners_texts(run: PinnedRun, manifest: Manifest, box: Box) -> Texts:
    """Return the texts of a joiner, from its own copy or through the swarm.

    Raises:
        MismatchError: manifest and run file name different texts.
        UserError: as `read_texts`.
    """
    shared, tokens = manifest.text, box.state.tokens
    if shared is None or not comes_through_the_swarm(run, manifest, box.peer):
        return read_texts(run, text_sources(run, box.peer, None), tokens, box.console.progress)
    box.console.note(what_comes(manifest, tokens))
    return shared_texts(run, shared, open_store(shared, tokens))


def _member(
    run: PinnedRun,
    texts: Texts | None,
    code: OwnCode | None,
    box: Box,
    weights: Path | None,
    known: tuple[Manifest, bytes] | None,
    before_building: Callable[[Recipe], None] = lambda recipe: None,
) -> Membership:
    """Build the run on this machine.

    Data and model are compared with the manifest, if there is one, before memory is allocated for
    weights.

    Args:
        run: the run.
        texts: the run's texts; None: it trains on the dataset of its module.
        code: the run's own code; None: it has none.
        box: this machine's side.
        weights: folder with the weights that the run began or begins from; None: no folder.
        known: manifest of the run and its record; None: the run is founded now.
        before_building: called with the traced model before memory is allocated for it.
    """
    console = box.console
    if code is not None:
        write_atomically(box.state.own_code, code.content)
    if texts is not None and texts.tokenizer.content:
        write_atomically(box.state.tokenizer, texts.tokenizer.packed)
    if weights is not None and run.train is not None:
        write_atomically(box.state.base, os.fsencode(weights.absolute()))
    source = open_source(run, code)
    samples = open_samples(run, source, texts)
    if known is not None:
        check_data(samples, known[0])
    for name, account in samples.accounts.items():
        for line in account.lines():
            console.note(f"text{name and f' {name}'}: {line}")
    console.note(f"data: {samples.amount}")
    if texts is not None and texts.store is None:
        console.note(borders(texts.tokenizer, run.data.answer_ends or ()))
    console.note("tracing the model and checking its sub-models against it")
    recipe = write_recipe(run, source)
    if known is not None:
        check_recipe(recipe, known[0].graph_hash, known[0].versions)
        layout = recipe.graph.layout
        if bool(known[0].frozen_digest) != (layout.total_elements > layout.trained_elements):
            raise MismatchError(
                "the run's manifest and its model disagree on whether anything is frozen",
                "ask the run's owner to found it again: frozen weights could differ between peers",
            )
    before_building(recipe)
    seed = int.from_bytes(hashlib.sha256(box.incarnation).digest()[:8], "big") >> 1
    prompts = wanted_prompts(box.peer.sample, recipe, box.state.tokenizer, console.note)
    program = box.state.program
    replica = build_replica(recipe, samples, box.peer, seed, program, console, prompts)
    manifest, record = known or _founded(recipe, samples, replica, weights, box)
    store = None if texts is None else texts.store
    return Membership(manifest, record, recipe, samples, replica, prompts, code, weights, store)


def _founded(
    recipe: Recipe, samples: Samples, replica: Replica, weights: Path | None, box: Box
) -> tuple[Manifest, bytes]:
    """Compute round 0, write it and the signed manifest to disk, and return (manifest, record)."""
    begin(recipe, replica, box.console, weights)
    run, state, frozen = recipe.run, replica.state_arenas(), replica.frozen
    manifest = Manifest(
        run=run.run.name,
        owner=box.identity.peer_id,
        run_file=normalised_run_text(run),
        graph_hash=recipe.graph.graph_hash,
        versions=tuple(PackageVersion(*each) for each in recipe.versions),
        data_digest=samples.digest,
        data_amount=DataAmount(*samples.amount),
        initial_state_digest=state_digest(state),
        founder_incarnation=box.incarnation,
        frozen_digest=state_digest(frozen) if frozen else b"",
        text=described(samples) if run.data.share == "swarm" else None,
    )
    record = encode_manifest(manifest, box.identity)
    if run.model.weights is not None:
        # No peer can compute this state again, so it must be on disk before the manifest is.
        digest = manifest.initial_state_digest
        write_snapshot(box.state.snapshots, 0, first_head(manifest).digest, digest, state)
    if frozen:
        write_tensors(box.state.snapshots / STILL, frozen, synced=True)
    write_atomically(box.state.manifest, record)
    return manifest, record
