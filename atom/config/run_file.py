"""The run file: everything that all peers of a swarm agree on."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from atom.base.errors import ConfigError
from atom.config.section import Bytes, PathText, Section, refuse

BYTE_VOCABULARY = 256

SizeName = Literal["small", "medium", "large", "xl", "2.7b", "6.7b", "13b", "175b"]
Count = Annotated[int, Field(ge=1, le=2**31)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


SourceName = Literal["family", "huggingface", "module"]
SOURCES: tuple[SourceName, ...] = ("family", "huggingface", "module")
MAX_CONFIG_CHARACTERS = 32 * 1024
_ENTRY = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
_KEYS: dict[str, set[str]] = {
    "family": {"size", "layers", "heads", "model_dim", "vocabulary_size", "dropout"},
    "huggingface": {"huggingface_config"},
    "module": {"module_sha256"},
}
_INSTEAD = {
    "family": "it belongs to models of another source",
    "huggingface": "the config.json says it: change it there",
    "module": "the factory says it: change it there",
}


class Run(Section):
    """[run]"""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")
    """1 to 63 of a-z, 0-9, `_`, `-`, `.`, the first a letter or digit."""
    rounds: Count | None = None
    """Optimizer steps of the swarm until everyone finishes; omitted: endless."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Decides the first weights, the order of the samples and dropout."""


class Model(Section):
    """[model]: one of family, huggingface and module says where it comes from."""

    family: Literal["gpt3"] | None = None
    """An architecture of ours: a named size, or the numbers."""
    huggingface: PathText | None = None
    """A config.json of a causal language model of transformers, relative to the run file."""
    huggingface_config: str | None = Field(default=None, max_length=MAX_CONFIG_CHARACTERS)
    """Content of the config.json, filled in when the run is founded."""
    module: str | None = Field(default=None, pattern=_ENTRY, max_length=256)
    """Own code: "package.module:factory"."""
    module_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest of the factory's source file, filled in when the run is founded."""
    size: SizeName | None = None
    """A size of the GPT-3 paper, instead of layers, heads and model_dim."""
    layers: int | None = Field(default=None, ge=1, le=4096)
    """Transformer blocks."""
    heads: int | None = Field(default=None, ge=1, le=4096)
    """Attention heads per block; model_dim is a multiple."""
    model_dim: int | None = Field(default=None, ge=1, le=2**20)
    """Width of the residual stream."""
    sequence_tokens: int = Field(default=2048, ge=1, le=2**20)
    """Tokens per sequence, in training and at most."""
    vocabulary_size: int | None = Field(default=None, ge=1, le=2**24)
    """Rows of the embedding; omitted: as many as the tokenizer has tokens."""
    dropout: Fraction = 0.0
    """Probability of dropping an activation while training."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the weights on the device; master weights are always float32."""

    @model_validator(mode="after")
    def _check(self) -> "Model":
        self._check_source()
        if self.family is None:
            return self
        numbers = {"layers": self.layers, "heads": self.heads, "model_dim": self.model_dim}
        for key, value in numbers.items():
            if self.size is not None and value is not None:
                refuse(key, f"size = {self.size!r} already says it", "remove one of the two")
            if self.size is None and value is None:
                hint = 'or name a size of the GPT-3 paper: size = "small"'
                refuse(key, "missing: a model without a size needs it", hint)
        if self.heads and self.model_dim and self.model_dim % self.heads:
            refuse("model_dim", f"{self.model_dim} is not divisible by heads = {self.heads}")
        return self

    @property
    def source(self) -> SourceName:
        """Which of the three keys says where the model comes from."""
        return next(name for name in SOURCES if getattr(self, name) is not None)

    def foreign_keys(self) -> set[str]:
        """Keys that say nothing about a model of this source."""
        own = _KEYS[self.source]
        return {key for keys in _KEYS.values() for key in keys} - own

    def shape(self) -> dict[str, Any]:
        """Keyword arguments that describe a model of a family, all but the vocabulary.

        Raises: ConfigError for a model of another source.
        """
        if self.family is None:
            raise ConfigError(
                f"model.{self.source}: this command knows models of a family only",
                'such as family = "gpt3"',
            )
        keys = {"size", "layers", "heads", "model_dim", "sequence_tokens", "dropout"}
        return self.model_dump(include=keys)

    def _check_source(self) -> None:
        named = [name for name in SOURCES if getattr(self, name) is not None]
        if not named:
            hint = 'huggingface = "config.json" or module = "package.module:factory" are others'
            refuse("family", 'missing: a model comes from somewhere: family = "gpt3"', hint)
        if len(named) > 1:
            refuse(named[1], f"the model comes from {named[0]} already", "remove one of the two")
        for key in sorted(self.foreign_keys() & self.model_fields_set):
            if getattr(self, key) is not None:
                refuse(key, f"says nothing with {named[0]}", _INSTEAD[named[0]])


class Data(Section):
    """[data]"""

    source: Literal["text", "python-stdlib", "module"]
    """Text files, the source code of Python's own standard library, or the module's dataset."""
    paths: Annotated[tuple[PathText, ...], Field(max_length=1024)] = ()
    """Files, folders and globs, relative to the run file."""
    tokenizer: PathText = "bytes"
    """"bytes", or a path to a tokenizer.json, relative to the run file."""
    tokenizer_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest of the tokenizer, filled in when the run is founded."""
    validation_fraction: Fraction = 0.0
    """Share of the tokens, at the end, that is held back for validation."""
    max_bytes: Annotated[Bytes, Field(ge=1)] | None = None
    """Use only this much of the text, from its start: "8 MB"."""

    @model_validator(mode="after")
    def _check(self) -> "Data":
        if self.source == "text" and not self.paths:
            refuse("paths", 'missing: source = "text" needs files', 'paths = ["input.txt"]')
        if self.source != "text" and self.paths:
            refuse("paths", f'source = "{self.source}" takes no paths', 'use source = "text"')
        if self.source == "module":
            for key in ("tokenizer", "tokenizer_sha256", "max_bytes"):
                if key in self.model_fields_set:
                    refuse(key, "the module brings its own dataset, not text", "remove it")
        return self


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


class Optimizer(Section):
    """[optimizer]"""

    name: Literal["adamw"] = "adamw"
    """Which optimizer."""
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
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls from the warmup's end to the last round."""
    clip_norm: float = Field(default=0.0, ge=0, le=1e6)
    """Longest allowed L2 norm of the whole gradient; 0: no clipping."""

    @model_validator(mode="after")
    def _check(self) -> "Optimizer":
        if self.final_learning_rate > self.learning_rate:
            refuse("final_learning_rate", f"is above learning_rate = {self.learning_rate}")
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
    codec: Literal["float32", "bfloat16"] = "float32"
    """How gradients travel between peers: bfloat16 halves the traffic, and rounds the average."""
    survivors: Literal["branch", "pause"] = "branch"
    """Without a quorum: go on as a recorded branch, or wait for as long as it takes."""


class Snapshot(Section):
    """[snapshot]"""

    every_rounds: Count = 50
    """Rounds between two snapshots on disk."""


class RunFile(Section):
    """A whole run file."""

    run: Run
    model: Model
    data: Data
    batch: Batch
    optimizer: Optimizer
    validation: Validation | None = None
    swarm: Swarm = Swarm()
    snapshot: Snapshot = Snapshot()

    @model_validator(mode="after")
    def _check(self) -> "RunFile":
        self._check_rounds()
        if self.validation and not self.data.validation_fraction:
            hint = "set it, 0.1 for example, or remove [validation]"
            refuse("data.validation_fraction", "[validation] needs text that is held back", hint)
        if self.data.source == "module":
            self._check_module_data()
        vocabulary = self.model.vocabulary_size
        if self.data.tokenizer == "bytes" and (vocabulary or BYTE_VOCABULARY) < BYTE_VOCABULARY:
            refuse("model.vocabulary_size", f"the bytes tokenizer has {BYTE_VOCABULARY} tokens")
        return self

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
        model = self.model
        if model.family is not None:
            model = model.model_copy(update={"vocabulary_size": wanted})
        data = self.data.model_copy(update={"tokenizer_sha256": tokenizer_sha256})
        return self.model_copy(update={"model": model, "data": data})

    def with_source(self, *, config: str | None = None, code: str | None = None) -> "RunFile":
        """The run with the content of its config.json, or the digest of its code, as read here.

        Raises: ConfigError if the run was founded with another one.
        """
        for key, found in (("huggingface_config", config), ("module_sha256", code)):
            if getattr(self.model, key) not in (None, found):
                raise ConfigError(
                    f"model.{key}: {self.model.source} = {getattr(self.model, self.model.source)!r}"
                    " is another one here",
                    f"remove {key}, it is filled in when a run is founded",
                )
        pinned = {"huggingface_config": config, "module_sha256": code}
        return self.model_copy(update={"model": self.model.model_copy(update=pinned)})

    def unused_keys(self) -> dict[str, set[str]]:
        """Section → keys that say nothing in this run, and are left out of its text."""
        model = set() if self.model.family is not None else self.model.foreign_keys()
        if self.data.source != "module":
            return {"model": model}
        return {"model": model | {"sequence_tokens"}, "data": {"tokenizer"}}

    def _check_module_data(self) -> None:
        if self.model.module is None:
            hint = 'use source = "text", or [model] module = "package.module:factory"'
            refuse("data.source", "the model is no module that could bring a dataset", hint)
        if "sequence_tokens" in self.model.model_fields_set:
            refuse("model.sequence_tokens", "the module brings samples, not text", "remove it")

    def _check_rounds(self) -> None:
        rounds, optimizer = self.run.rounds, self.optimizer
        if rounds is None:
            if optimizer.decay != "constant":
                hint = 'set rounds under [run], or decay = "constant"'
                refuse("optimizer.decay", f"{optimizer.decay} needs a last round", hint)
        elif optimizer.warmup_rounds > rounds:
            refuse("optimizer.warmup_rounds", f"is longer than the run of {rounds} rounds")
