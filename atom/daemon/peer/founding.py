"""Becoming a peer of a run: a founder builds the run from a run file, a joiner from the manifest.

Both build the run's model, text and replica on this machine. The founder computes the state of
round 0 and signs the manifest; a joiner compares what it built with the manifest.
"""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from atom.base.errors import (
    ConfigError,
    MismatchError,
    ModelError,
    StorageError,
    UserError,
)
from atom.config.load import normalised_run_text, run_from_text
from atom.config.run_file import RunFile
from atom.config.sources import text_sources
from atom.daemon.console import Console
from atom.daemon.model.kept_run import KeptRun, is_state
from atom.daemon.model.model_source import (
    agreed_run,
    open_samples,
    open_source,
    pin_source,
    source_errors,
)
from atom.daemon.model.recipe import (
    Recipe,
    check_recipe,
    fill_frozen,
    initialise,
    refuse_versions,
    write_recipe,
)
from atom.daemon.model.sampled import wanted_prompts
from atom.daemon.model.shared_text import (
    comes_through_the_swarm,
    described,
    open_store,
    samples_of,
    what_comes,
    with_share,
)
from atom.daemon.model.text_source import check_data, open_text, pin_table
from atom.daemon.model.weight_files import WeightFiles, given_values, refuse_unused
from atom.daemon.peer.box import Box, StartOptions, check_same_run, read_manifest
from atom.daemon.peer.building import build_replica
from atom.daemon.state_directory import write_atomically
from atom.models.data.samples import Samples
from atom.models.hub import fetch_weights
from atom.models.own_code import OwnCode
from atom.models.source import InitialValue
from atom.swarm.chain.commit import Head
from atom.swarm.records.manifest import (
    DataAmount,
    Manifest,
    PackageVersion,
    encode_manifest,
    first_head,
    manifest_digest,
)
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.piece_store import PieceStore
from atom.training.replica.replica import Replica
from atom.training.replica.round_texts import Prompts
from atom.training.storage.disk import write_tensors
from atom.training.storage.run_storage import STILL, write_snapshot

_Made = tuple[Recipe, Samples, Replica, Prompts | None]
"""A run as built on this machine."""


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
    console: Console
    """Console that shows the progress of the first weights."""
    weights: Path | None = None
    """Folder with the weights that the run began from, as named by `--from`; None: no folder."""
    text: PieceStore | None = None
    """Store of the run's text as it arrives from other peers; None: this peer has a copy."""

    @property
    def run(self) -> RunFile:
        """Pinned run."""
        return self.recipe.run

    @property
    def run_id(self) -> bytes:
        """Digest of the manifest, by which peers recognise that they belong to one run."""
        return manifest_digest(self.manifest)

    @property
    def genesis(self) -> Head:
        """Head of round 0, which the manifest determines."""
        return first_head(self.manifest)

    def initialise(self) -> bool:
        """Set the replica to round 0, if the run's seed determines that state.

        Given weights cannot be computed: a joiner fetches the founder's first snapshot instead.

        Returns:
            True if the replica now equals the run's round 0 bit for bit.
        """
        if self.run.model.weights is not None and self.run.train is None:
            return False
        with source_errors(self.run):
            initialise(self.replica, self.recipe, self.console)
        digest = state_digest(self.replica.state_arenas())
        return digest == self.manifest.initial_state_digest

    def fill_frozen(self) -> bool:
        """Fill in the frozen parameters from the seed, the hub or the folder that `--from` named.

        Returns:
            False if they must be fetched from other peers instead.

        Raises:
            ConfigError: the folder or the model cannot be used.
            MismatchError: the folder's weights are not the ones of the run.
        """
        begins_from = self.run.model.weights if self.weights is None else None
        if begins_from == "given":
            return False
        try:
            hub = begins_from == "hub"
            found = _weights_of_hub(self.recipe, self.console) if hub else self.weights
            self._fill_frozen(found)
        except UserError as problem:
            if begins_from is None:
                raise
            self.console.note(f"{problem.message}; what is frozen is fetched from other peers")
            return False
        return True

    def _fill_frozen(self, weights: Path | None) -> None:
        with source_errors(self.run):
            given = _given_by(weights, self.recipe) if weights else None
            fill_frozen(self.replica, self.recipe, self.console, given)
        if weights and state_digest(self.replica.frozen) != self.manifest.frozen_digest:
            raise MismatchError(
                f"{weights} holds other weights than those that the run began from",
                "get the same as the run's founder, or leave --from out: others have them",
            )


def found_run(options: StartOptions, box: Box, run: RunFile) -> Membership:
    """Found the run, or continue it if it was founded in this state directory.

    Args:
        options: options of `atom start`.
        box: this machine's side, whose state directory is locked.
        run: the run file's content, not yet pinned.

    Raises:
        ConfigError: the run file, the peer file or the weights cannot be used.
        StorageError: the disk is full, or files in the state directory are damaged.
        MismatchError: the run file or the data differ from the run that was founded here.
        ModelError: the model cannot be traced, or its sub-models compute something else.
        DeviceError: a device does not exist or cannot be used.
    """
    folder, known = options.run_file.absolute().parent, read_manifest(box, run.run.name)
    weights = options.weights
    if weights is not None and known is None:  # raises now, and not after hours of tokenising
        if is_state(weights):
            KeptRun.read(weights, with_chain=False).chosen()
        else:
            WeightFiles.open(weights)
    kept = None if known is None else run_from_text(known[0].run_file)
    given = weights is not None if kept is None else _began_from_weights(kept, weights)
    with source_errors(run):
        run, code = pin_source(run, folder, given, kept)
        sources = text_sources(run, box.peer, folder)
        run = pin_table(run, sources, kept)
        run, text = open_text(run, sources, box.state.tokens, box.console.progress)
        if text is not None:
            run = with_share(run, text)
        run_text = normalised_run_text(run)
        if known is not None:
            check_same_run(known[0], run_text, box, options.run_file)
        if code is not None:
            write_atomically(box.state.own_code, code.content)
        made = _make(run, text, code, box, known and known[0])
        manifest, record = known or _founded(made, run_text, weights, box)
        return Membership(manifest, record, *made, code, box.console, weights)


def _given_by(folder: Path, recipe: Recipe) -> InitialValue:
    """Return the values in `folder`, which holds safetensors or is a run's state directory.

    Raises:
        UserError: the values are not this model's.
    """
    if is_state(folder):
        return KeptRun.read(folder, with_chain=False).weights(recipe.graph.layout)
    refuse_unused(recipe, folder)
    return given_values(recipe.source, folder)


def _began_from_weights(kept: RunFile, weights: Path | None) -> bool:
    """Return True if the kept run began from weights given with `--from`.

    Raises:
        MismatchError: `weights` names a folder, but the run began without weights.
    """
    if weights is not None and kept.model.weights is None:
        raise MismatchError(
            "the run in this state directory began from its seed, not from given weights",
            "leave --from out, or found a new run with another name or --state DIR",
        )
    return kept.model.weights == "given"


def _weights_of_hub(recipe: Recipe, console: Console) -> Path:
    """Fetch the weights that the run pins on the hub, and return their folder.

    Raises:
        ConfigError: the hub does not have them.
        AddressError: the hub cannot be reached.
    """
    model, most_bytes = recipe.run.model, 8 * recipe.graph.layout.total_elements + (1 << 20)
    assert model.huggingface is not None
    assert model.revision is not None, "pinned with the weights"
    what = f"fetching {model.huggingface} from the hub"
    with source_errors(recipe.run):
        told = partial(console.progress, what)
        return fetch_weights(model.huggingface, model.revision, most_bytes, told)


def _founded(made: _Made, run_text: str, weights: Path | None, box: Box) -> tuple[Manifest, bytes]:
    """Compute round 0, write it and the signed manifest to disk, and return (manifest, record)."""
    recipe, samples, replica, _ = made
    given = None
    if recipe.run.model.weights == "hub":
        weights = _weights_of_hub(recipe, box.console)
    if weights is not None:
        given = _given_by(weights, recipe)
    for fill in (fill_frozen, initialise):
        fill(replica, recipe, box.console, given)
    run, state, frozen = recipe.run, replica.state_arenas(), replica.frozen
    manifest = Manifest(
        run=run.run.name,
        owner=box.identity.peer_id,
        run_file=run_text,
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
    if weights is not None:
        # No peer can compute this state again, so it must be on disk before the manifest is.
        digest = manifest.initial_state_digest
        write_snapshot(box.state.snapshots, 0, first_head(manifest).digest, digest, state)
    if frozen:
        write_tensors(box.state.snapshots / STILL, frozen, synced=True)
    write_atomically(box.state.manifest, record)
    return manifest, record


def enter_run(
    manifest: Manifest,
    record: bytes,
    code: OwnCode | None,
    box: Box,
    weights: Path | None = None,
) -> Membership:
    """Build the run of a manifest on this machine, and record the manifest as this peer's run.

    Args:
        manifest: the run's manifest, verified by the caller.
        record: the manifest with its owner's signature.
        code: the run's own code, which is executed; None: the run has none.
        box: this machine's side, whose state directory is locked.
        weights: folder with the weights that the run began from; None: no folder.

    Raises:
        MismatchError: this installation, or our copy of the text, differs from the run's.
        UserError: as `found_run`.
    """
    run = run_of(manifest, box)
    if weights is not None:
        WeightFiles.open(weights)  # raises now, and not only after the model is traced
    run, text, store = _text_of(run, manifest, box)
    try:
        with source_errors(run):
            made = _make(run, text, code, box, manifest)
    except (ConfigError, ModelError) as problem:
        # The cause may be another version of a library, which does not know the model.
        refuse_versions(manifest.versions, problem)
        raise
    write_atomically(box.state.manifest, record)
    return Membership(manifest, record, *made, code, box.console, weights, store)


def _text_of(
    run: RunFile, manifest: Manifest, box: Box
) -> tuple[RunFile, Samples | None, PieceStore | None]:
    """Return the text of a joiner, from its own copy or through the swarm.

    Returns:
        (run, samples, store). Samples are None if the run trains on its module's dataset; the store
        is None if the text does not come through the swarm.

    Raises:
        UserError: as `open_text`.
    """
    shared = manifest.text
    if shared is None or not comes_through_the_swarm(run, manifest, box.peer):
        sources = text_sources(run, box.peer, None)
        return *open_text(run, sources, box.state.tokens, box.console.progress), None
    box.console.note(what_comes(manifest, box.peer, box.state.tokens))
    store = open_store(shared, box.state.tokens)
    return run, samples_of(run, shared, store), store


def run_of(manifest: Manifest, box: Box) -> RunFile:
    """Return the run that a (verified) manifest describes.

    Raises:
        ConfigError: its run file is not valid.
        MismatchError: the manifest contradicts its run file.
        StorageError: this state directory belongs to another run.
    """
    known = read_manifest(box, manifest.run)
    if known is not None and manifest_digest(known[0]) != manifest_digest(manifest):
        raise StorageError(
            f"{box.state.root} belongs to another run named {manifest.run!r}",
            "choose another directory with --state DIR",
        )
    return agreed_run(manifest)


def _make(
    run: RunFile,
    text: Samples | None,
    code: OwnCode | None,
    box: Box,
    manifest: Manifest | None = None,
) -> _Made:
    """Build recipe, samples, replica and prompts.

    Data and model are compared with the manifest, if there is one, before memory is allocated for
    weights.
    """
    console = box.console
    if text is not None and text.tokenizer_json:
        write_atomically(box.state.tokenizer, text.tokenizer_json)
    source = open_source(run, code)
    samples = open_samples(run, source, text)
    if manifest is not None:
        check_data(samples, manifest)
    console.note(f"data: {samples.amount}")
    console.note("tracing the model and checking its sub-models against it")
    recipe = write_recipe(run, source)
    if manifest is not None:
        check_recipe(recipe, manifest.graph_hash, manifest.versions)
        layout = recipe.graph.layout
        if bool(manifest.frozen_digest) != (layout.total_elements > layout.trained_elements):
            raise MismatchError(
                "the run's manifest and its model disagree on whether anything is frozen",
                "ask the run's owner to found it anew: peers could train beside different weights",
            )
    seed = int.from_bytes(hashlib.sha256(box.incarnation).digest()[:8], "big") >> 1
    prompts = wanted_prompts(box.peer.sample, recipe, box.state.tokenizer, console.note)
    replica = build_replica(recipe, samples, box.peer, seed, box.state.program, console, prompts)
    return recipe, samples, replica, prompts
