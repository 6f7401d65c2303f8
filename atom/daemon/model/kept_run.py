"""Reader of the run in a state directory, which a daemon may use at the same time.

It writes nothing, and reads only files that the daemon replaces as a whole or only appends to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atom.base.errors import (
    ConfigError,
    ModelError,
    PeerRefused,
    StorageError,
    TrustError,
)
from atom.config.load import pinned_run
from atom.config.run_file import PinnedRun
from atom.daemon.model.recipe import (
    check_recipe,
    open_source,
    refuse_versions,
    source_errors,
    write_recipe,
)
from atom.daemon.state_directory import StateDirectory, own_identity
from atom.graph.ir import ParameterLayout
from atom.models.module_source import OwnCode, kept_code
from atom.models.source import InitialValue, ModelSource
from atom.swap.host_store import FROZEN
from atom.swap.state_form import HIGH, LOW, MASTER, joined
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
    frozen: Tensor | None
    """Flat tensor of the frozen parameters; None: all parameters are trained."""

    def value(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return a parameter in `dtype`, with the bits that a device computing in it would use.

        Returns:
            A tensor shaped like the parameter: a view of the state, or new memory.
        """
        spec = self.layout.by_name[name]
        if spec.frozen:
            assert self.frozen is not None, "its digest is in the manifest"
            start = spec.offset - self.layout.trained_elements
            return self.frozen[start : start + spec.numel].view(spec.shape).to(dtype)
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
    journal: Journal | None
    """Chain of commits; None: not read, so states are checked against their own digests only."""

    @classmethod
    def read(
        cls, root: Path, note: Callable[[str], None] = lambda text: None, with_chain: bool = True
    ) -> "KeptRun":
        """Read manifest and chain.

        Args:
            root: the state directory.
            note: gets a message before the chain is checked, which may take long.
            with_chain: False for a chain that another protocol version may have written.

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
        try:
            journal = None
            if with_chain:
                note(f"reading the chain of {manifest.run}")
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
            SourceError: the model cannot be built.
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
        if wanted == LATEST:
            return max(found, key=lambda each: each.round)
        if wanted == BEST:
            chosen = best_of(found)
        else:
            chosen = next((each for each in found if each.round == int(wanted)), None)
        if chosen is None:
            rounds = ", ".join(str(number) for number in sorted({each.round for each in found}))
            nothing = f"no checkpoint of round {wanted}"
            what = "no checkpoint with a validation" if wanted == BEST else nothing
            raise StorageError(
                f"{self.state.root} holds {what}; it has rounds {rounds}",
                "[checkpoints] in the peer file says which rounds are stored from now on",
            )
        return chosen

    def layout(self, source: ModelSource) -> ParameterLayout:
        """Return where parameters lie in the arenas: the model is traced again, without weights.

        Raises:
            MismatchError: this installation builds another model than the run's.
            ConfigError: as `source_errors`.
            ModelError: the model cannot be traced.
        """
        try:
            with source_errors(self.run):
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
        is_checkpoint = snapshot.path.parent == self.state.checkpoints
        if is_checkpoint or self.journal is None:
            return snapshot.checked(None)
        first = self.manifest.initial_state_digest
        certified = self.journal.certified_state(snapshot.round, first)
        return snapshot.checked(certified)

    def frozen(self) -> Tensor | None:
        """Return the frozen parameters as a flat tensor, mapped and checked; None: all are trained.

        Raises:
            StorageError: the file is missing or damaged.
        """
        wanted, path = self.manifest.frozen_digest, self.state.snapshots / STILL
        if not wanted:
            return None
        arenas = read_tensors(path)
        if state_digest(arenas) != wanted:
            raise StorageError(
                f"{path} is damaged: it does not hold the run's initial weights",
                "delete it, and start the daemon once, which fetches it",
            )
        return arenas[FROZEN]

    def weights(self, wanted: ParameterLayout) -> InitialValue:
        """Return the newest weights as float32, by name, for a new run that begins from them.

        Args:
            wanted: the parameters of the new run, which must include all parameters of this run.

        Raises:
            ConfigError: the new run has another model, or this run trains adapters.
            StorageError: no state is kept, or it is damaged.
            UserError: as `source` and `layout`.
        """
        if self.run.train is not None:
            raise ConfigError(
                f"{self.state.root} holds adapters and a frozen model",
                "merge them with `atom export FOLDER`, then begin with --from FOLDER",
            )
        weights = HeldWeights(
            self.layout(self.source(None)), self.arenas(self.chosen()), self.frozen()
        )
        shapes, others = (
            {e.name: e.shape for e in each.specs} for each in (weights.layout, wanted)
        )
        another = ConfigError(
            f"{self.state.root} holds another model than this run's",
            "keep [model] as it was, or begin from an exported folder",
        )
        if not shapes.items() <= others.items():
            raise another

        def value(name: str, shape: tuple[int, ...]) -> Tensor:
            if name not in shapes:
                raise another
            return weights.value(name, torch.float32)

        return value

    def _require_trust(self, code: OwnCode, trust: str | None) -> None:
        owner = self.manifest.owner
        keeper = own_identity(self.state.root)
        wanted = code.trust_of(owner)
        if trust != wanted and (keeper is None or keeper.peer_id != owner):
            raise TrustError(
                f"this run's model is code of its owner {owner}, saved in {code.path}",
                f"to execute it again, for the names of the weights: --trust {wanted}",
            )


def is_state(folder: Path) -> bool:
    """Return True if `folder` is a state directory with a run in it."""
    return StateDirectory(folder).manifest.is_file()
