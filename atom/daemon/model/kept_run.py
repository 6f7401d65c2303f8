"""Reader of the run in a state directory, which a daemon may use at the same time.

It writes nothing, and reads only files that the daemon replaces as a whole or only appends to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from atom.base.errors import ConfigError, ModelError, PeerRefused, StorageError, TrustError
from atom.config.load import pinned_run
from atom.config.run_file import PinnedRun
from atom.daemon.model.recipe import check_recipe, open_source, refuse_versions, write_recipe
from atom.daemon.state_directory import StateDirectory, own_identity
from atom.graph.ir import ParameterLayout
from atom.models.module_source import OwnCode, kept_code
from atom.models.source import ModelSource
from atom.swap.host_store import FROZEN, HIGH, LOW, MASTER, joined
from atom.swarm.records.manifest import Manifest, decode_manifest, first_head
from atom.swarm.state.arenas import state_digest
from atom.training.storage.checkpoints import BEST, best_of
from atom.training.storage.disk import read_tensors
from atom.training.storage.run_storage import STILL, Journal, Snapshot, list_snapshots

LATEST = "latest"


@dataclass(frozen=True)
class HeldWeights:
    """Weights of one state, by name of the parameter."""

    layout: ParameterLayout
    arenas: Mapping[str, Tensor]
    """Flat tensors of the state. Needed are `MASTER`, or `HIGH`; `LOW` too for the dtypes that
    `HIGH` does not have."""
    frozen: Callable[[], Tensor]
    """Function that reads the flat tensor of the frozen parameters, if there are any."""

    def value(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return a parameter in `dtype`, with the bits that a device computing in it would use.

        Returns:
            A tensor shaped like the parameter: a view of the state, or new memory.
        """
        spec = self.layout.by_name[name]
        if spec.frozen:
            start = spec.offset - self.layout.trained_elements
            return self.frozen()[start : start + spec.numel].view(spec.shape).to(dtype)
        if MASTER in self.arenas:
            return self.layout.view(self.arenas[MASTER], name).to(dtype)
        high = self.layout.view(self.arenas[HIGH], name)
        if dtype == high.dtype:
            return high
        return joined(high, self.layout.view(self.arenas[LOW], name)).to(dtype)


@dataclass(frozen=True)
class KeptRun:
    """Run in a state directory, as its files describe it."""

    state: StateDirectory
    manifest: Manifest
    run: PinnedRun
    journal: Journal
    """Chain of commits."""

    @classmethod
    def read(cls, root: Path, note: Callable[[str], None] = lambda text: None) -> "KeptRun":
        """Read manifest and chain.

        Args:
            root: the state directory.
            note: gets a message before the chain is checked, which may take long.

        Raises:
            StorageError: there is no run, or its files are damaged.
            ConfigError: the run file is not valid.
        """
        state = StateDirectory(root)
        try:
            manifest = decode_manifest(state.manifest.read_bytes(), None)
        except (OSError, PeerRefused) as problem:
            hint = "name the state directory of a peer with --state DIR"
            if isinstance(problem, PeerRefused):
                hint = f"{state.manifest} is damaged: delete it, then join the run again"
            raise StorageError(f"{state.root} holds no run", hint) from problem
        note(f"reading the chain of {manifest.run}")
        try:
            journal = Journal(state.chain, first_head(manifest))
        except OSError as problem:
            raise StorageError(
                f"the run in {state.root} cannot be read: {problem}",
                f"check the permissions of {state.chain}, and its disk",
            ) from problem
        return cls(state, manifest, pinned_run(manifest.run_file), journal)

    def source(self, trust: str | None) -> ModelSource:
        """Return the source that builds the run's model, which may be code of its owner.

        Args:
            trust: the value of `--trust`, which has to name that code. The owner's own state
                directory needs none.

        Raises:
            TrustError: the code may not run here.
            ConfigError: the model cannot be built.
            StorageError: the code that is kept is not the run's.
        """
        code, model = None, self.run.model
        if model.module is not None:
            code = kept_code(model.module, self.state.own_code, model.module_sha256)
            if code is None:
                what = f"{self.state.own_code} is not the run's code"
                raise StorageError(what, "start the daemon once, which fetches it")
            self._require_trust(code, trust)
        return open_source(self.run, code)

    def chosen(self, wanted: str = LATEST) -> Snapshot:
        """Return one of the snapshots and checkpoints.

        Args:
            wanted: number of the round, as text; LATEST; or BEST, by validation loss.

        Raises:
            StorageError: nothing is kept, or not the wanted round.
        """
        folders = self.state.snapshots, self.state.checkpoints
        found = [each for folder in folders for each in list_snapshots(folder, self.journal)]
        if not found:
            raise StorageError(
                f"{self.state.root} holds no snapshot yet",
                f"the daemon writes one every {self.run.snapshot.every_rounds} rounds, and when "
                "the run ends",
            )
        of_round = {each.round: each for each in reversed(found)}  # snapshots before checkpoints
        if wanted == LATEST:
            return of_round[max(of_round)]
        chosen = best_of(found) if wanted == BEST else of_round.get(int(wanted))
        if chosen is None:
            kind = "with a validation" if wanted == BEST else f"of round {wanted}"
            rounds = ", ".join(map(str, sorted(of_round)))
            raise StorageError(
                f"{self.state.root} holds no checkpoint {kind}; it has rounds {rounds}",
                "[checkpoints] in the peer file says which rounds are stored from now on",
            )
        return chosen

    def layout(self, source: ModelSource) -> ParameterLayout:
        """Return where parameters lie in the arenas: the model is traced again, without weights.

        Raises:
            MismatchError: this installation builds another model than the run's.
            ConfigError: the model cannot be built.
            ModelError: the model cannot be traced.
        """
        try:
            recipe = write_recipe(self.run, source)
        except (ConfigError, ModelError) as problem:
            refuse_versions(self.manifest.versions, problem)
            raise
        check_recipe(recipe, self.manifest.graph_hash, self.manifest.versions)
        return recipe.graph.layout

    def arenas(self, snapshot: Snapshot) -> dict[str, Tensor]:
        """Return the state in a snapshot, mapped from the file, after checking every byte.

        A snapshot is compared with the digest in the chain. No commit names a checkpoint, which is
        compared with the digest in its own file.

        Returns:
            Name of the arena → flat tensor.

        Raises:
            StorageError: the file is damaged.
        """
        if snapshot.path.parent == self.state.checkpoints:
            return snapshot.checked(None)
        first = self.manifest.initial_state_digest
        certified = self.journal.certified_state(snapshot.round, first)
        return snapshot.checked(certified)

    def _held(self, source: ModelSource, snapshot: Snapshot) -> HeldWeights:
        # Mapped before the model is traced, during which the daemon may delete the file.
        arenas = self.arenas(snapshot)
        return HeldWeights(self.layout(source), arenas, cache(self._frozen))

    def opened(self, trust: str | None, wanted: str) -> tuple[ModelSource, Snapshot, HeldWeights]:
        """Return the run's model, and the weights of one of the snapshots and checkpoints.

        Args:
            trust: as for `source`.
            wanted: as for `chosen`.

        Raises:
            StorageError: the state is missing or damaged.
            UserError: as `source` and `layout`.
        """
        self.chosen(wanted)  # raises now if there is none, and not only after libraries are loaded
        source = self.source(trust)
        # Read again: the daemon may have replaced its snapshots while libraries were loaded.
        kept = KeptRun.read(self.state.root)
        snapshot = kept.chosen(wanted)
        # Mapped before the model is traced, during which the daemon may delete the file.
        arenas = kept.arenas(snapshot)
        return source, snapshot, HeldWeights(kept.layout(source), arenas, cache(kept._frozen))

    def _frozen(self) -> Tensor:
        """Return the frozen parameters as a flat tensor, mapped and checked.

        Raises:
            StorageError: the file is missing or damaged.
        """
        path = self.state.snapshots / STILL
        arenas = read_tensors(path)
        if state_digest(arenas) != self.manifest.frozen_digest:
            raise StorageError(
                f"{path} is damaged: it does not hold the run's initial weights",
                "delete it, and start the daemon once, which fetches it",
            )
        return arenas[FROZEN]

    def _require_trust(self, code: OwnCode, trust: str | None) -> None:
        owner = self.manifest.owner
        keeper = own_identity(self.state.root)
        wanted = code.trust_of(owner)
        if trust != wanted and (keeper is None or keeper.peer_id != owner):
            raise TrustError(
                f"this run's model is code of its owner {owner}, saved in {code.path}",
                f"to execute it again, for the names of the weights: --trust {wanted}",
            )
