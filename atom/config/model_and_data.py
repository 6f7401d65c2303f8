"""[model] and [data] of a run file: what is trained, from one of three sources, and on what. Keys
that say nothing about the source are refused."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from atom.config.section import WORDS, Bytes, Fraction, PathText, Precision, Section, refuse

SizeName = Literal["small", "medium", "large", "xl", "2.7b", "6.7b", "13b", "175b"]
SourceName = Literal["family", "huggingface", "module"]
SOURCES: tuple[SourceName, ...] = get_args(SourceName)
MAX_CONFIG_CHARACTERS = 32 * 1024
"""As many as `atom.models.huggingface` reads."""
_ENTRY = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
_KEYS: dict[str, set[str]] = {
    "family": {"size", "layers", "heads", "model_dim", "vocabulary_size", "dropout"},
    "huggingface": {"huggingface_config", "revision"},
    "module": {"module_sha256"},
}
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=WORDS)]
_ON_THE_HUB = 'huggingface = "OWNER/NAME"; a folder is named with --from FOLDER'
ANSWERS = "answers"
MAX_TEXTS = 16
SourceKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
_TEXT_SOURCES = ("text", "datasets", "python-stdlib")
_DATA_KEYS = {
    "paths": ("text",),
    **dict.fromkeys(("path", "name", "split", "revision", "text_field", "train_on"), ("datasets",)),
    **dict.fromkeys(("tokenizer", "tokenizer_sha256", "max_bytes", "share"), _TEXT_SOURCES),
}
"""Key of [data] → the sources with which it says something."""


class Model(Section):
    """[model]: one of family, huggingface and module says where it comes from."""

    family: Literal["gpt3"] | None = None
    """An architecture of ours: a named size, or the numbers."""
    huggingface: PathText | None = None
    """A causal language model of transformers: its config.json, relative to the run file, or
    OWNER/NAME on the hub."""
    huggingface_config: str | None = Field(default=None, max_length=MAX_CONFIG_CHARACTERS)
    """Content of the config.json, filled in when the run is founded."""
    revision: Revision | None = None
    """Of a model of the hub: its commit, 40 hex digits; filled in when the run is founded."""
    module: str | None = Field(default=None, pattern=_ENTRY, max_length=256)
    """Own code: "package.module:factory"."""
    module_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest of the factory's source file, filled in when the run is founded."""
    weights: Literal["given", "hub"] | None = None
    """Where the run begins, if not from its seed: from its founder's weights, which is filled in
    with `--from`, or from those of the hub's model."""
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
    precision: Precision = "float32"
    """Number format of the weights on the device; master weights are always float32."""

    @model_validator(mode="after")
    def _check(self) -> "Model":
        named = [name for name in SOURCES if getattr(self, name) is not None]
        if not named:
            hint = 'huggingface = "config.json" or module = "package.module:factory" are others'
            refuse("family", 'missing: a model comes from somewhere: family = "gpt3"', hint)
        if len(named) > 1:
            refuse(named[1], f"the model comes from {named[0]} already", "remove one of the two")
        for key in sorted(self.foreign_keys() & self.model_fields_set):
            if getattr(self, key) is not None:
                hint = "remove it: where the model comes from says this"
                refuse(key, f"says nothing with {named[0]}", hint)
        if self.weights == "hub" and self.huggingface is None:
            refuse("weights", "only a model of the hub has weights there", _ON_THE_HUB)
        for key in ("layers", "heads", "model_dim") if self.family else ():
            if (self.size is None) == (getattr(self, key) is None):
                what = "a family takes a size, or all of layers, heads and model_dim"
                refuse(key, what, 'a size of the GPT-3 paper is size = "small"')
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
        """Keyword arguments that describe a model of a family, all but the vocabulary."""
        keys = {"size", "layers", "heads", "model_dim", "sequence_tokens", "dropout"}
        return self.model_dump(include=keys)


class TextSource(Section):
    """Where a text is."""

    source: Literal["text", "python-stdlib", "datasets", "module"] | None = None
    """Text files, the source code of Python's own standard library, a table of Hugging Face
    `datasets`, or the module's dataset."""
    paths: Annotated[tuple[PathText, ...], Field(max_length=1024)] = ()
    """Files, folders and globs, relative to the run file."""
    path: PathText | None = None
    """Of a table: a folder relative to the run file, or OWNER/NAME on the hub."""
    name: Name | None = None
    """Of a table that has several configurations."""
    split: Annotated[str, Field(pattern=r"^\w+(\.\w+)*$", max_length=256)] | None = None
    """Of a table, such as "validation"; omitted: "train"."""
    revision: Revision | None = None
    """Of a table of the hub: its commit, 40 hex digits; filled in when the run is founded."""
    max_bytes: Annotated[Bytes, Field(ge=1)] | None = None
    """Use only this much of the text, from its start: "8 MB"."""
    text_field: Name | None = None
    """Column of a table that holds the text; omitted: "text"."""
    train_on: Literal["answers"] | None = None
    """Of a table's conversations only what the assistant says is a target; omitted: all tokens."""
    answer_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of all tokens, those that are targets: filled in when the run is founded."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.source == "text" and not self.paths:
            refuse("paths", 'missing: source = "text" needs files', 'paths = ["input.txt"]')
        if self.source == "datasets" and self.path is None:
            what = 'missing: source = "datasets" needs a folder or a name of the hub'
            refuse("path", what, 'path = "OWNER/NAME"')
        if self.answer_share is not None and self.train_on is None:
            refuse("answer_share", 'says nothing without train_on = "answers"', "remove it")
        for key, sources in _DATA_KEYS.items() if self.source else ():
            said = key in self.model_fields_set and getattr(self, key) not in (None, ())
            if said and self.source not in sources:
                hint = f"remove it, or use source = {' or '.join(map(repr, sources))}"
                refuse(key, f'says nothing with source = "{self.source}"', hint)
        return self


class MixedSource(TextSource):
    """[data.sources.NAME]: one of several texts. Keys are those of [data], and its weight."""

    source: Literal["text", "python-stdlib", "datasets"] = "text"
    """As in [data]; omitted: "text"."""
    weight: int = Field(default=1, ge=0, le=1000)
    """Sequences of this text in a cycle of as many as all weights together; 0: it is never trained
    on, and validated as a whole."""


class Data(TextSource):
    """[data]"""

    sources: dict[SourceKey, MixedSource] = Field(default_factory=dict, max_length=MAX_TEXTS)
    """Several texts instead of one, by names of letters, digits, "_" and "-"."""
    tokenizer: PathText = "bytes"
    """"bytes", or a path to a tokenizer.json, relative to the run file."""
    tokenizer_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest of the tokenizer, filled in when the run is founded."""
    validation_fraction: Fraction = 0.0
    """Share of the tokens, at the end of each text, that is held back for validation."""
    share: Literal["swarm", "own-copy"] | None = None
    """How the text comes to the others: as tokens, from peer to peer, or each needs a copy of its
    own; omitted: as tokens, up to 20 GB of them; filled in when the run is founded."""
    attention: Literal["documents"] | None = None
    """Tokens of a sequence see those of their own document, and positions begin with it; omitted:
    all before them."""
    end_token: int | None = Field(default=None, ge=0, lt=2**31)
    """That ends a document then: filled in when the run is founded."""

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if not self.sources and self.source is None:
            refuse("source", "is missing", 'source = "text", or several: [data.sources.NAME]')
        for key in TextSource.model_fields if self.sources else ():
            if getattr(self, key) not in (None, ()):
                refuse(key, "says nothing beside [data.sources.NAME]", "write it under these")
        if self.sources and not any(self.weights.values()):
            refuse("sources", "every weight is 0: nothing is trained on", "give one a weight of 1")
        if self.end_token is not None and self.attention is None:
            refuse("end_token", 'says nothing without attention = "documents"', "remove it")
        if self.attention is not None and self.tokenizer == "bytes":
            what = "a newline between documents is not told from one within"
            refuse(
                "attention", what, "name a tokenizer.json that has a token for the end of a text"
            )
        if self.learns_answers and self.tokenizer == "bytes":
            what = "conversations need the model's own tokenizer, and its chat template"
            refuse("tokenizer", what, 'tokenizer = "FOLDER/tokenizer.json"')
        return self

    @property
    def learns_answers(self) -> bool:
        """Whether not every token is a target."""
        return any(text.train_on == ANSWERS for text in self.texts.values())

    @property
    def texts(self) -> Mapping[str, TextSource]:
        """By name, those to train on first; of a run with one text, that has no name."""
        if not self.sources:
            return {"": self}
        return dict(sorted(self.sources.items(), key=lambda item: (not item[1].weight, item[0])))

    @property
    def weights(self) -> Mapping[str, int]:
        """As `texts`."""
        return {name: getattr(text, "weight", 1) for name, text in self.texts.items()}

    @property
    def held_back(self) -> Sequence[str]:
        """The texts that there is a validation set of."""
        is_cut = self.validation_fraction > 0
        return [name for name, weight in self.weights.items() if is_cut or not weight]

    def with_each(self, key: str, values: Mapping[str, str | float | None]) -> "Data":
        """With another value of that key, by text."""
        updates = {name: {key: value} for name, value in values.items()}
        if not self.sources:
            return self.model_copy(update=updates.get("", {}))
        changed = {name: self.sources[name].model_copy(update=updates[name]) for name in updates}
        return self.model_copy(update={"sources": {**self.sources, **changed}})
