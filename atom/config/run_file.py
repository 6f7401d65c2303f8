"""The run file: all settings that the peers of a swarm have in common."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from atom.config.address import RUN_NAME
from atom.config.model_and_data import PINNED_KEYS, Data, Model, Name
from atom.config.section import Count, Fraction, PeerId, Section, one_of, refuse

BYTE_VOCABULARY = 256
"""Number of tokens of the "bytes" tokenizer."""
MAX_MEMBERS = 64
"""Maximum number of peer ids in a list.

Each takes some 36 bytes compressed, so that the whole run file still fits into a DHT record.
"""


class Run(Section):
    """Section [run]: name, length and seed of the run."""

    name: str = Field(pattern=rf"^{RUN_NAME.pattern}$")
    """Name of the run: 1 to 63 of a-z, 0-9, `_`, `-`, `.`; the first is a letter or digit."""
    rounds: Count | None = None
    """Optimizer steps of the swarm after which all peers finish; omitted: the run is endless."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the initial weights and of the order of the samples."""


class Train(Section):
    """Section [train]: adapters are trained, and the model is frozen; omitted: the whole model."""

    what: Literal["adapters"] = "adapters"
    """Trained part: low-rank adapters (LoRA) on linear layers, as in peft."""
    rank: int = Field(default=8, ge=1, le=4096)
    """Rank of an adapter: the width of its inner representation."""
    alpha: float = Field(default=16.0, gt=0, le=1e6)
    """Numerator of an adapter's scale: its output is multiplied by alpha / rank."""
    dropout: Fraction = 0.0
    """Probability of dropping an element of an adapter's input while training."""
    targets: Annotated[tuple[Name, ...], Field(max_length=64)] = ()
    """Layers with adapters, by the whole name or its end, with wildcards; omitted: all linear
    layers except the head."""


class Batch(Section):
    """Section [batch]: batch sizes, in sequences."""

    global_sequences: int = Field(ge=1, le=2**24)
    """Global batch: sequences per round, over all peers."""
    micro_batch_sequences: int = Field(ge=1, le=2**16)
    """Micro-batch: sequences that go through a sub-model at a time."""

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
    "lion": "atom.optim.momentum:Lion",
}
"""Name → "module:class" of an `Optimizer`, built from betas, epsilon, weight_decay and seed."""
CODECS = {
    "float32": "atom.swarm.exchange.codec:Float32",
    "bfloat16": "atom.swarm.exchange.codec:BFloat16",
    "int8": "atom.swarm.exchange.codec:Int8",
    "int4": "atom.swarm.exchange.codec:Int4",
    "sparse": "atom.swarm.exchange.sparse:Sparse",
}
"""Name → "module:class" of a `Codec`."""
EVERY_STEP, LOCAL_STEPS = "every-step", "local-steps"
UPDATE_RULES = {
    EVERY_STEP: "atom.training.replica.update_rule:EveryStep",
    LOCAL_STEPS: "atom.training.replica.local_steps:LocalSteps",
}
"""Name → "module:class" of an `UpdateRule`."""


class Optimizer(Section):
    """Section [optimizer]: the optimizer, its learning-rate schedule and number formats."""

    name: str = Field(default="adamw", pattern=one_of(OPTIMIZERS))
    """Optimizer: adamw; adamw-8bit, with moments in 8 bits; muon, for local-steps only; lion."""
    learning_rate: float = Field(gt=0, le=1e3)
    """Highest learning rate, reached after the warmup."""
    final_learning_rate: float = Field(default=0.0, ge=0, le=1e3)
    """Learning rate of the last round, where the decay ends."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Decay rates of the running means of the gradient and of its square."""
    epsilon: float = Field(default=1e-8, gt=0, le=1)
    """Constant added to the root of the second moment."""
    weight_decay: float = Field(default=0.1, ge=0, le=1e3)
    """Decoupled weight decay: a step shrinks the weights by learning rate times this."""
    warmup_rounds: int = Field(default=0, ge=0, le=2**31)
    """Rounds over which the rate rises from zero."""
    decay: Literal["constant", "linear", "cosine", "1-sqrt"] = "constant"
    """Curve along which the rate falls to final_learning_rate."""
    decay_rounds: Count | None = None
    """Last rounds of the run over which the rate falls, after a stable phase (WSD); omitted: all
    rounds after the warmup."""
    clip_norm: float = Field(default=0.0, ge=0, le=1e6)
    """Largest allowed L2 norm of the whole gradient; 0: no clipping."""
    state: Literal["exact", "split", "half"] = "exact"
    """Number format of weights and moments on the host; "split" and "half" are for models in
    bfloat16."""
    gradients: Literal["float32", "bfloat16"] = "float32"
    """Number format of gradients on the device-to-host copy and in each peer's sum on the host."""

    @model_validator(mode="after")
    def _check(self) -> "Optimizer":
        if self.final_learning_rate > self.learning_rate:
            refuse("final_learning_rate", f"is above learning_rate = {self.learning_rate}")
        what = 'has no effect with decay = "constant"'
        if self.decay == "constant" and self.decay_rounds is not None:
            refuse("decay_rounds", what, 'remove it, or set decay = "cosine"')
        if self.decay == "constant" and self.final_learning_rate not in (0.0, self.learning_rate):
            refuse("final_learning_rate", what, 'remove it, or set decay = "cosine"')
        return self


class Update(Section):
    """Section [update]: the update rule of a round."""

    rule: str = Field(default=EVERY_STEP, pattern=one_of(UPDATE_RULES))
    """Update rule: every-step averages gradients and takes one optimizer step per round;
    local-steps averages the weight differences that each peer's own optimizer steps made."""
    inner_sequences: int | None = Field(default=None, ge=1, le=2**24)
    """Sequences per local optimizer step of one peer, with local-steps."""
    outer_rate: float = Field(default=0.9, gt=0, le=10)
    """Learning rate of the outer step, with local-steps; 1: move to the mean of the peers'
    weights (without momentum)."""
    outer_momentum: Fraction = 0.8
    """Nesterov momentum of the outer step, with local-steps."""

    @model_validator(mode="after")
    def _check(self) -> "Update":
        if self.rule == EVERY_STEP:
            local = sorted(Update.model_fields.keys() - {"rule"})
            hint = f'remove it, or set rule = "{LOCAL_STEPS}"'
            self.refuse_given(local, f'has no effect with rule = "{EVERY_STEP}"', hint)
        if self.rule == LOCAL_STEPS and self.inner_sequences is None:
            hint = "set it to the number of sequences per local optimizer step of one peer"
            refuse("inner_sequences", "is missing", hint)
        return self


class Validation(Section):
    """Section [validation]; omitted: the run is never validated."""

    every_rounds: Count
    """Rounds between two validations."""
    batches: int = Field(default=20, ge=1, le=2**20)
    """Micro-batches of each text over which one validation averages."""


class Swarm(Section):
    """Section [swarm]: rules for a lost quorum, for compression, and for taking part."""

    grace_seconds: float = Field(default=12.0, ge=1, le=86400)
    """Silence of voters, in seconds, after which the other peers go on without a quorum."""
    codec: str = Field(default="float32", pattern=one_of(CODECS))
    """Compression of gradients between peers, relative to float32: bfloat16 sends half the bytes
    and rounds the average; int8 sends a quarter, int4 an eighth, sparse a sixtieth. With these
    three, each peer adds its compression error to its next contribution."""
    survivors: Literal["branch", "pause"] = "branch"
    """Behaviour without a quorum: "branch" goes on as a recorded branch; "pause" waits until the
    missing voters are back or confirmed dead."""
    members: Annotated[tuple[PeerId, ...], Field(max_length=MAX_MEMBERS)] | None = None
    """Peer ids that may take part, in addition to the owner; omitted: any peer may."""
    trusted: Annotated[tuple[PeerId, ...], Field(max_length=MAX_MEMBERS)] | None = None
    """Peer ids that may vote and own parts from the first round on, in addition to the owner and
    the members; any other peer earns this by contributing to rounds."""

    @model_validator(mode="after")
    def _check(self) -> "Swarm":
        if self.members == ():
            refuse("members", "an empty list admits no peer", "leave it out for an open run")
        for key, peers in ("members", self.members or ()), ("trusted", self.trusted or ()):
            twice = next((peer for peer in peers if peers.count(peer) > 1), None)
            if twice is not None:
                refuse(key, f"{twice} is listed more than once", "list each peer once")
        return self


class Snapshot(Section):
    """Section [snapshot]: intervals between states on disk."""

    every_rounds: Count = 50
    """Rounds between two snapshots on disk."""


class RunFile(Section):
    """Complete run file."""

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
            refuse("update.inner_sequences", what, "lower it, or raise batch.global_sequences")
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
        for key, default in ("state", "exact"), ("gradients", "float32"):
            value = getattr(optimizer, key)
            if value != default and precision != "bfloat16":
                what = f'"{value}" is for bfloat16; model.precision is {precision}'
                hint = f'leave it at "{default}", or set model.precision = "bfloat16"'
                refuse(f"optimizer.{key}", what, hint)
        codec, every_step = self.swarm.codec, self.update.rule == EVERY_STEP
        if optimizer.gradients == "bfloat16" and every_step and codec in ("int8", "int4", "sparse"):
            what = f'the codec "{codec}" feeds back its error, which bfloat16 sums would round away'
            refuse("optimizer.gradients", what, 'set swarm.codec = "bfloat16"')

    def _check_data(self) -> None:
        if self.validation and not self.data.held_back:
            hint = "set it, 0.1 for example, or remove [validation]"
            refuse("data.validation_fraction", "[validation] needs text that is held back", hint)
        if self.data.attention is not None and self.model.huggingface is None:
            what = "only models of transformers can attend within documents"
            refuse("data.attention", what, 'use [model] huggingface = "…", or remove it')
        if self.data.learns_answers and self.model.huggingface is None:
            what = "only models of transformers can train on answers only"
            refuse("model", what, 'use huggingface = "…", or remove [data] train_on')
        if self.data.source == "module":
            if self.model.module is None:
                hint = 'use source = "text", or [model] module = "package.module:factory"'
                refuse("data.source", "only a model from a module can bring a dataset", hint)
            if self.model.sequence_tokens != Model.model_fields["sequence_tokens"].default:
                refuse("model.sequence_tokens", "the module brings samples, not text", "remove it")
        vocabulary = self.model.vocabulary_size
        if self.data.tokenizer == "bytes" and (vocabulary or BYTE_VOCABULARY) < BYTE_VOCABULARY:
            what = f"{vocabulary} is too few: the bytes tokenizer has {BYTE_VOCABULARY} tokens"
            refuse("model.vocabulary_size", what, "raise it, or leave it out")


class PinnedRun(RunFile):
    """Complete run file of a founded run: the keys are filled in by which all peers build the same.

    The founder pins the run (`atom.daemon.model.pinning`), and its manifest carries the text to the
    joiners.
    """

    @model_validator(mode="after")
    def _check_pinned(self) -> "PinnedRun":
        needed = [f"model.{PINNED_KEYS[self.model.source]}"]
        if self.model.weights == "hub":
            needed.append("model.revision")
        if self.data.attention is not None:
            needed.append("data.end_token")
        for section, key in (place.split(".") for place in needed):
            if getattr(getattr(self, section), key) is None:
                refuse(f"{section}.{key}", "is missing", "founding a run fills it in")
        return self
