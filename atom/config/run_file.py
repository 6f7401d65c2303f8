"""The run file: everything that all peers of a swarm agree on."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from atom.base.errors import ConfigError
from atom.config.address import RUN_NAME
from atom.config.model_and_data import Data, Model, Name
from atom.config.section import Count, Fraction, PeerId, Section, one_of, refuse

BYTE_VOCABULARY = 256
MAX_MEMBERS = 64
"""Some 36 bytes each, compressed: with the rest of the run file they fit into a DHT record."""


class Run(Section):
    """[run]"""

    name: str = Field(pattern=rf"^{RUN_NAME.pattern}$")
    """1 to 63 of a-z, 0-9, `_`, `-`, `.`, the first a letter or digit."""
    rounds: Count | None = None
    """Optimizer steps of the swarm until everyone finishes; omitted: endless."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Decides the first weights, the order of the samples and dropout."""


class Train(Section):
    """[train]; omitted: all parameters are trained."""

    what: Literal["adapters", "last-layers"] = "adapters"
    """Low-rank adapters beside linear layers, as peft has them, or the last layers; all else is
    frozen."""
    rank: int = Field(default=8, ge=1, le=4096)
    """Of an adapter: numbers that it makes of its layer's input."""
    alpha: float = Field(default=16.0, gt=0, le=1e6)
    """What an adapter adds is multiplied by alpha / rank."""
    dropout: Fraction = 0.0
    """Probability of dropping a number of an adapter's input while training."""
    targets: Annotated[tuple[Name, ...], Field(max_length=64)] = ()
    """Layers with adapters, by name or its end, with wildcards; omitted: all linear layers, but for
    the head."""
    layers: int | None = Field(default=None, ge=1, le=4096)
    """How many of the last layers are trained, with all that comes behind them."""

    @model_validator(mode="after")
    def _check(self) -> "Train":
        if self.what == "last-layers" and self.layers is None:
            refuse("layers", 'is missing: what = "last-layers" needs their number', "layers = 2")
        for key in sorted(self.foreign_keys() & self.model_fields_set):
            if getattr(self, key) is not None:
                refuse(key, f'says nothing with what = "{self.what}"', "remove it")
        return self

    def foreign_keys(self) -> set[str]:
        """Keys that say nothing here."""
        last = self.what == "last-layers"
        return {"rank", "alpha", "dropout", "targets"} if last else {"layers"}


class Batch(Section):
    """[batch]"""

    global_sequences: int = Field(ge=1, le=2**24)
    """The global batch: sequences per round, over all peers."""
    micro_batch_sequences: int = Field(ge=1, le=2**16)
    """Sequences that go through a sub-model at a time."""

    @model_validator(mode="after")
    def _check(self) -> "Batch":
        if self.micro_batch_sequences > self.global_sequences:
            what = f"{self.micro_batch_sequences} is more than the whole global batch"
            refuse("micro_batch_sequences", f"{what} of {self.global_sequences} sequences")
        return self


OPTIMIZERS = {
    "adamw": "atom.optim.adamw:AdamW",
    "adamw-8bit": "atom.optim.adamw:AdamW8Bit",
    "muon": "atom.optim.muon:Muon",
    "lamb": "atom.optim.layerwise:LAMB",
    "lars": "atom.optim.layerwise:LARS",
}
"""By name: module and class of an `Optimizer`, made of betas, epsilon, weight_decay and seed."""
CODECS = {
    "float32": "atom.swarm.exchange.codec:Float32",
    "bfloat16": "atom.swarm.exchange.codec:BFloat16",
    "int8": "atom.swarm.exchange.codec:Int8",
    "int4": "atom.swarm.exchange.codec:Int4",
    "sparse": "atom.swarm.exchange.sparse:Sparse",
}
"""By name: module and class of a `Codec`."""
EVERY_STEP, LOCAL_STEPS = "every-step", "local-steps"
UPDATE_RULES = {
    EVERY_STEP: "atom.training.replica.update_rule:EveryStep",
    LOCAL_STEPS: "atom.training.replica.local_steps:LocalSteps",
}
"""By name: module and class of an `UpdateRule`."""


class Optimizer(Section):
    """[optimizer]"""

    name: str = Field(default="adamw", pattern=one_of(OPTIMIZERS))
    """Which optimizer: adamw; adamw-8bit, with moments in 8 bits; muon, for local-steps only; lamb
    and lars, for large batches."""
    learning_rate: float = Field(gt=0, le=1e3)
    """The highest rate, reached after the warmup."""
    final_learning_rate: float = Field(default=0.0, ge=0, le=1e3)
    """The rate of the last round, where the decay ends."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Decay of the running mean of the gradient and of its square."""
    epsilon: float = Field(default=1e-8, gt=0, le=1)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.1, ge=0, le=1e3)
    """Decoupled: per round the weights shrink by learning rate times this."""
    warmup_rounds: int = Field(default=0, ge=0, le=2**31)
    """Rounds over which the rate rises from zero."""
    decay: Literal["constant", "linear", "cosine", "1-sqrt"] = "constant"
    """How the rate falls to that of the last round."""
    decay_rounds: Count | None = None
    """Rounds at the end over which it falls, after a stable rate (WSD); omitted: all since the
    warmup."""
    clip_norm: float = Field(default=0.0, ge=0, le=1e6)
    """Longest allowed L2 norm of the whole gradient; 0: no clipping."""
    state: Literal["exact", "split", "half"] = "exact"
    """In which numbers weights and moments are kept; the last two with bfloat16 only."""
    gradients: Literal["float32", "bfloat16"] = "float32"
    """In which numbers gradients leave the device and are summed on the host, per peer."""

    @model_validator(mode="after")
    def _check(self) -> "Optimizer":
        if self.final_learning_rate > self.learning_rate:
            refuse("final_learning_rate", f"is above learning_rate = {self.learning_rate}")
        stays = 'says nothing with decay = "constant"'
        if self.decay == "constant" and self.decay_rounds is not None:
            refuse("decay_rounds", stays, 'remove it, or set decay = "cosine"')
        if self.decay == "constant" and self.final_learning_rate not in (0.0, self.learning_rate):
            refuse("final_learning_rate", stays, 'remove it, or set decay = "cosine"')
        return self


class Update(Section):
    """[update]"""

    rule: str = Field(default=EVERY_STEP, pattern=one_of(UPDATE_RULES))
    """What a round averages and what follows from it: every-step averages gradients and takes one
    optimizer step; local-steps averages how far each peer's own steps led."""
    inner_sequences: int | None = Field(default=None, ge=1, le=2**24)
    """Sequences of one of a peer's own steps."""
    outer_rate: float = Field(default=0.9, gt=0, le=10)
    """How far a round goes along the average of the peers' steps; 1: to their mean."""
    outer_momentum: Fraction = 0.8
    """Of the outer rule, Nesterov's."""

    @model_validator(mode="after")
    def _check(self) -> "Update":
        if self.rule == EVERY_STEP:
            for key in sorted(self.model_fields_set - {"rule"}):
                hint = f'remove it, or set rule = "{LOCAL_STEPS}"'
                refuse(key, f'says nothing with rule = "{EVERY_STEP}"', hint)
        if self.rule == LOCAL_STEPS and self.inner_sequences is None:
            hint = "set it to the sequences that one peer's optimizer step should take"
            refuse("inner_sequences", "is missing", hint)
        return self


class Validation(Section):
    """[validation]; omitted: the run is never validated."""

    every_rounds: Count
    """Rounds between two validations."""
    batches: int = Field(default=20, ge=1, le=2**20)
    """Micro-batches that one validation averages."""


class Swarm(Section):
    """[swarm]"""

    grace_seconds: float = Field(default=12.0, ge=1, le=86400)
    """How long the others wait for silent voters before they go on without a quorum."""
    codec: str = Field(default="float32", pattern=one_of(CODECS))
    """How gradients travel between peers: bfloat16 halves the traffic and rounds the average; int8
    quarters it, int4 takes an eighth, sparse a sixtieth, and each peer keeps what these took away
    for the next round."""
    survivors: Literal["branch", "pause"] = "branch"
    """Without a quorum: go on as a recorded branch, or wait for as long as it takes."""
    members: Annotated[tuple[PeerId, ...], Field(max_length=MAX_MEMBERS)] | None = None
    """Peer ids that may take part, beside the owner; omitted: any peer may."""
    trusted: Annotated[tuple[PeerId, ...], Field(max_length=MAX_MEMBERS)] | None = None
    """Peer ids that may vote and own parts from the first round on, beside the owner and the
    members; any other peer earns that by contributing to rounds."""

    @model_validator(mode="after")
    def _check(self) -> "Swarm":
        if self.members == ():
            refuse("members", "an empty list would let no peer in", "leave it out for an open run")
        for key, peers in ("members", self.members or ()), ("trusted", self.trusted or ()):
            twice = next((one for one in peers if peers.count(one) > 1), None)
            if twice is not None:
                refuse(key, f"{twice} is listed more than once", "list each peer once")
        return self


class Snapshot(Section):
    """[snapshot]"""

    every_rounds: Count = 50
    """Rounds between two snapshots on disk."""


class RunFile(Section):
    """A whole run file."""

    run: Run
    model: Model
    data: Data
    train: Train | None = None
    batch: Batch
    optimizer: Optimizer
    update: Update = Update()
    validation: Validation | None = None
    swarm: Swarm = Swarm()
    snapshot: Snapshot = Snapshot()

    @model_validator(mode="after")
    def _check(self) -> "RunFile":
        self._check_optimizer()
        self._check_data()
        inner, batch = self.update.inner_sequences, self.batch
        if inner is not None and inner > batch.global_sequences:
            what = f"{inner} is more than the whole global batch of {batch.global_sequences}"
            refuse("update.inner_sequences", what, "raise batch.global_sequences, or lower it")
        return self

    def _check_optimizer(self) -> None:
        rounds, optimizer, precision = self.run.rounds, self.optimizer, self.model.precision
        if rounds is None and optimizer.decay != "constant":
            hint = 'set rounds under [run], or decay = "constant"'
            refuse("optimizer.decay", f"{optimizer.decay} needs a last round", hint)
        if rounds is not None and optimizer.warmup_rounds > rounds:
            refuse("optimizer.warmup_rounds", f"is longer than the run of {rounds} rounds")
        ends = optimizer.warmup_rounds + (optimizer.decay_rounds or 0)
        if rounds is not None and optimizer.decay_rounds and ends >= rounds:
            what = f"with the warmup they are {ends} of the run's {rounds} rounds: none is stable"
            refuse("optimizer.decay_rounds", what, "shorten it, or leave it out")
        for key, usual in ("state", "exact"), ("gradients", "float32"):
            value = getattr(optimizer, key)
            if value != usual and precision != "bfloat16":
                what = f'"{value}" is for bfloat16; model.precision is {precision}'
                hint = f'leave it at "{usual}", or set model.precision = "bfloat16"'
                refuse(f"optimizer.{key}", what, hint)
        codec, sums = self.swarm.codec, self.update.rule == EVERY_STEP
        if optimizer.gradients == "bfloat16" and sums and codec in ("int8", "int4", "sparse"):
            what = f'the codec "{codec}" gives back what it lost, which sums in bfloat16 would lose'
            refuse("optimizer.gradients", what, 'set swarm.codec = "bfloat16"')

    def _check_data(self) -> None:
        if self.validation and not self.data.held_back:
            hint = "set it, 0.1 for example, or remove [validation]"
            refuse("data.validation_fraction", "[validation] needs text that is held back", hint)
        if self.data.attention is not None and self.model.huggingface is None:
            what = "only models of transformers see documents apart"
            refuse("data.attention", what, 'use [model] huggingface = "…", or leave it out')
        if self.data.learns_answers and self.model.huggingface is None:
            what = "only models of transformers learn answers alone"
            refuse("model", what, 'use huggingface = "…", or leave out [data] train_on')
        if self.data.source == "module":
            if self.model.module is None:
                hint = 'use source = "text", or [model] module = "package.module:factory"'
                refuse("data.source", "the model is no module that could bring a dataset", hint)
            if "sequence_tokens" in self.model.model_fields_set:
                refuse("model.sequence_tokens", "the module brings samples, not text", "remove it")
        vocabulary = self.model.vocabulary_size
        if self.data.tokenizer == "bytes" and (vocabulary or BYTE_VOCABULARY) < BYTE_VOCABULARY:
            what = f"{vocabulary} is too few: the bytes tokenizer has {BYTE_VOCABULARY} tokens"
            refuse("model.vocabulary_size", what, "raise it, or leave it out")

    def changed(self, section: Literal["model", "data"], **values: str | float | None) -> "RunFile":
        """The run with other values in that section."""
        content = getattr(self, section).model_copy(update=values)
        return self.model_copy(update={section: content})

    def pinned(self, vocabulary_size: int, tokenizer_sha256: str) -> "RunFile":
        """The run with what its founder's tokenizer decides, so that joiners can check theirs.

        Raises: ConfigError for another tokenizer, or one with more tokens than the vocabulary.
        """
        wanted = self.model.vocabulary_size or vocabulary_size
        if wanted < vocabulary_size:
            raise ConfigError(
                f"model.vocabulary_size: {wanted} is less than the tokenizer's {vocabulary_size}",
                "raise it, or leave it out",
            )
        if self.data.tokenizer_sha256 not in (None, tokenizer_sha256):
            raise ConfigError(
                "data.tokenizer: this is another tokenizer than the run's",
                "get the tokenizer.json that the run's founder uses",
            )
        pinned = self.changed("data", tokenizer_sha256=tokenizer_sha256)
        if self.model.family is None:
            return pinned
        return pinned.changed("model", vocabulary_size=wanted)

    def with_source(
        self,
        *,
        config: str | None = None,
        revision: str | None = None,
        code: str | None = None,
        weights_given: bool = False,
    ) -> "RunFile":
        """The run with the content of its config.json and where that is from, or the digest of its
        code, as read here; and with the word that it begins from given weights, or the hub's.
        Raises: ConfigError if it says otherwise.
        """
        wanted = self.model.weights
        if wanted == "hub" and (weights_given or revision is None):
            other = "is no model of the hub" if revision is None else "and --from says otherwise"
            raise ConfigError(
                f"model.weights: the run begins from the hub's weights, {other}",
                'name it with huggingface = "OWNER/NAME", or remove the key and use --from FOLDER',
            )
        if wanted == "given" and not weights_given:
            raise ConfigError(
                "model.weights: the run begins from given weights, and none are given",
                "name their folder with --from FOLDER, or remove the key",
            )
        pinned = {"huggingface_config": config, "revision": revision, "module_sha256": code}
        for key, found in pinned.items():
            if getattr(self.model, key) not in (None, found):
                raise ConfigError(
                    f"model.{key}: {self.model.source} = {getattr(self.model, self.model.source)!r}"
                    " is another one here",
                    f"remove {key}, it is filled in when a run is founded",
                )
        return self.changed("model", **pinned, weights="given" if weights_given else wanted)

    def unused_keys(self) -> dict[str, set[str]]:
        """Section → keys that say nothing in this run, and are left out of its text."""
        model = set() if self.model.family is not None else self.model.foreign_keys()
        local = {"inner_sequences", "outer_rate", "outer_momentum"}
        unused = {"model": model, "update": local if self.update.rule == EVERY_STEP else set()}
        if self.train is not None:
            unused["train"] = self.train.foreign_keys()
        if self.data.source == "module":
            unused |= {"model": model | {"sequence_tokens"}, "data": {"tokenizer"}}
        return unused
