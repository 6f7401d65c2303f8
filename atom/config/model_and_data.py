"""Sections [model] and [data] of a run file: the model, from one of three sources, and its text.

Keys that do not apply to the chosen source are refused.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from atom.base.errors import ConfigError
from atom.config.section import WORDS, Bytes, Fraction, PathText, Precision, Section, Share, refuse

SizeName = Literal["small", "medium", "large", "xl", "2.7b", "6.7b", "13b", "175b"]
SourceName = Literal["family", "huggingface", "module"]
SOURCES: tuple[SourceName, ...] = get_args(SourceName)
MAX_CONFIG_CHARACTERS = 32 * 1024
"""Maximum length of a config.json, the same as in `atom.models.huggingface_config`."""
_ENTRY = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
_KEYS_OF_SOURCE: dict[str, set[str]] = {
    "family": {"size", "layers", "heads", "model_dim", "vocabulary_size", "dropout"},
    "huggingface": {"huggingface_config", "revision"},
    "module": {"module_sha256"},
}
PINNED_KEYS: dict[SourceName, str] = {
    "family": "vocabulary_size",
    "huggingface": "huggingface_config",
    "module": "module_sha256",
}
"""Source of a model → key in [model] that is filled in when the run is founded."""
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=WORDS)]
_ON_THE_HUB = 'set huggingface = "OWNER/NAME"; for weights in a folder, use --from FOLDER'
ANSWERS = "answers"
MAX_TEXTS = 16
_ENCODINGS = (
    r"^(bytes|latin-1|windows-125[0-8]|iso-8859-([1-9]|1[013-6])|koi8-r|utf-16-[bl]e|gb18030|big5"
    r"|shift_jis|euc_jp|euc_kr)$"
)
MAX_ENDS = 64
"""Maximum number of tokens that end an answer."""
TokenNumber = Annotated[int, Field(ge=0, lt=2**31)]
SourceKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
_TEXT_SOURCES = ("text", "datasets", "python-stdlib")
_DATA_KEYS = {
    "paths": ("text",),
    **dict.fromkeys(("path", "name", "split", "revision", "train_on"), ("datasets",)),
    **dict.fromkeys(("text_field", "bad_rows", "encoding"), ("text", "datasets")),
    **dict.fromkeys(("tokenizer", "tokenizer_sha256", "max_bytes", "share"), _TEXT_SOURCES),
    "lost_text": _TEXT_SOURCES,
}
"""Key of [data] → the values of `source` to which it applies."""


class Model(Section):
    """Section [model]: exactly one of the keys family, huggingface and module names the source."""

    family: Literal["gpt3"] | None = None
    """Built-in architecture, described by a size, or by layers, heads and model_dim."""
    huggingface: PathText | None = None
    """Causal language model of transformers: the path of its config.json, relative to the run file,
    or OWNER/NAME on the hub."""
    huggingface_config: str | None = Field(default=None, max_length=MAX_CONFIG_CHARACTERS)
    """Content of the config.json, filled in when the run is founded."""
    revision: Revision | None = None
    """Commit of the model on the hub, 40 hex digits; filled in when the run is founded."""
    module: str | None = Field(default=None, pattern=_ENTRY, max_length=256)
    """Factory in your own code that builds the model: "package.module:factory"."""
    module_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest of the factory's source file, filled in when the run is founded."""
    weights: Literal["given", "hub"] | None = None
    """Initial weights, if not drawn from the seed: "hub" takes the weights of the model on the hub;
    "given" takes the founder's weights, and is filled in by --from."""
    size: SizeName | None = None
    """Size from the GPT-3 paper, instead of layers, heads and model_dim."""
    layers: int | None = Field(default=None, ge=1, le=4096)
    """Transformer blocks."""
    heads: int | None = Field(default=None, ge=1, le=4096)
    """Attention heads per block; model_dim must be a multiple of their number."""
    model_dim: int | None = Field(default=None, ge=1, le=2**20)
    """Width of the residual stream."""
    sequence_tokens: int = Field(default=2048, ge=1, le=2**20)
    """Tokens per training sequence; also the number of positions of a gpt3 model."""
    vocabulary_size: int | None = Field(default=None, ge=1, le=2**24)
    """Rows of the embedding table; omitted: as many as the tokenizer has tokens."""
    dropout: Fraction = 0.0
    """Probability of dropping an activation while training."""
    precision: Precision = "float32"
    """Number format of the weights on the device; master weights are always float32."""

    @model_validator(mode="after")
    def _check(self) -> "Model":
        named = [name for name in SOURCES if getattr(self, name) is not None]
        if not named:
            hint = 'or write huggingface = "config.json", or module = "package.module:factory"'
            refuse("family", 'missing: name the model, for example family = "gpt3"', hint)
        if len(named) > 1:
            refuse(named[1], f"the model already comes from {named[0]}", "remove one of the two")
        foreign = {key for keys in _KEYS_OF_SOURCE.values() for key in keys}
        foreign -= _KEYS_OF_SOURCE[self.source]
        hint = f"remove it: {self.source} determines this"
        self.refuse_given(sorted(foreign), f"has no effect with {self.source}", hint)
        if self.weights == "hub" and self.huggingface is None:
            refuse("weights", '"hub" needs a model on the hub', _ON_THE_HUB)
        for key in ("layers", "heads", "model_dim") if self.family else ():
            if (self.size is None) == (getattr(self, key) is None):
                what = "a family needs a size, or all of layers, heads and model_dim"
                refuse(key, what, 'write size = "small", for example, or these three keys')
        if self.heads and self.model_dim and self.model_dim % self.heads:
            refuse("model_dim", f"{self.model_dim} is not divisible by heads = {self.heads}")
        return self

    @property
    def source(self) -> SourceName:
        """Name of the key that names the model: family, huggingface or module."""
        return next(name for name in SOURCES if getattr(self, name) is not None)

    def pinned(self, found: Mapping[str, str | None], weights_given: bool) -> "Model":
        """Return the section with the source of the model filled in, as found on this machine.

        Args:
            found: keys that describe the source (`huggingface_config`, `revision` and
                `module_sha256`) → value; None: the key does not apply.
            weights_given: True if the run begins from weights given with `--from`.

        Raises:
            ConfigError: the run already says something else.
        """
        on_hub = found.get("revision") is not None
        if self.weights == "hub" and (weights_given or not on_hub):
            why = "and --from says otherwise" if on_hub else "but is no model of the hub"
            raise ConfigError(
                f"model.weights: the model takes the weights of the hub, {why}",
                'name it with huggingface = "OWNER/NAME", or remove the key and use --from FOLDER',
            )
        if self.weights == "given" and not weights_given:
            raise ConfigError(
                'model.weights: "given" needs weights, and none are given',
                "name their folder with --from FOLDER, or remove the key",
            )
        for key, value in found.items():
            if getattr(self, key) not in (None, value):
                raise ConfigError(
                    f"model.{key}: {self.source} = {getattr(self, self.source)!r}"
                    " is different on this machine",
                    f"remove {key}: it is filled in when a run is founded",
                )
        weights = "given" if weights_given else self.weights
        return self.model_copy(update={**found, "weights": weights})

    def shape(self) -> dict[str, Any]:
        """Return the keyword arguments of a family's config, without the vocabulary size."""
        keys = {"size", "layers", "heads", "model_dim", "sequence_tokens", "dropout"}
        return self.model_dump(include=keys)


class TextSource(Section):
    """Keys that describe one text; shared by [data] and [data.sources.NAME]."""

    source: Literal["text", "python-stdlib", "datasets", "module"] | None = None
    """Kind of text: "text" (files), "python-stdlib" (source code of Python's standard library),
    "datasets" (a table of Hugging Face), or "module" (the dataset of the model's own code)."""
    paths: Annotated[tuple[PathText, ...], Field(max_length=1024)] = ()
    """Text files, folders and globs, relative to the run file."""
    path: PathText | None = None
    """Table: a folder relative to the run file, or OWNER/NAME on the hub."""
    name: Name | None = None
    """Configuration of a table that has several."""
    split: Annotated[str, Field(pattern=r"^\w+(\.\w+)*$", max_length=256)] | None = None
    """Split of a table, such as "validation"; omitted: "train"."""
    revision: Revision | None = None
    """Commit of a table on the hub, 40 hex digits; filled in when the run is founded."""
    max_bytes: Annotated[Bytes, Field(ge=1)] | None = None
    """Most bytes of the text to use, from its start: "8 MB"; omitted: all."""
    text_field: Name | None = None
    """Column of a table that holds the text; omitted: "text"."""
    bad_rows: Literal["stop", "skip"] | None = None
    """Effect of a row that cannot become text: "stop" the start, or "skip" and count the row;
    omitted: "stop"."""
    encoding: str | None = Field(default=None, pattern=_ENCODINGS)
    """Encoding of files that are not UTF-8, such as "windows-1252"; "bytes": use the bytes of
    files as they are, except data files, which are UTF-8."""
    train_on: Literal["answers"] | None = None
    """Tokens that are training targets: "answers", the assistant's in a table of conversations;
    omitted: all tokens."""
    answer_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Fraction of all tokens that are targets with train_on = "answers"; filled in when the run is
    founded."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.source == "text" and not self.paths:
            refuse("paths", 'missing: source = "text" needs files', 'paths = ["input.txt"]')
        if self.source == "datasets" and self.path is None:
            what = 'missing: source = "datasets" needs a folder or a name on the hub'
            refuse("path", what, 'path = "OWNER/NAME"')
        if self.train_on is None:
            what = 'has no effect without train_on = "answers"'
            self.refuse_given(["answer_share"], what, "remove it")
        for key, sources in _DATA_KEYS.items() if self.source else ():
            if self.source not in sources:
                hint = f"remove it, or use source = {' or '.join(map(repr, sources))}"
                self.refuse_given([key], f'has no effect with source = "{self.source}"', hint)
        return self


class MixedSource(TextSource):
    """Section [data.sources.NAME]: one of several texts and its weight in the mixture."""

    source: Literal["text", "python-stdlib", "datasets"] = "text"
    """Kind of text, as under [data] but without "module"; omitted: "text"."""
    weight: int = Field(default=1, ge=0, le=1000)
    """Sequences of this text per cycle, which has as many sequences as the sum of all weights; 0:
    the text is used for validation only."""


class Data(TextSource):
    """Section [data]: the text or texts of the run, and how tokens are made of them."""

    sources: dict[SourceKey, MixedSource] = Field(default_factory=dict, max_length=MAX_TEXTS)
    """Several texts instead of one; their names have letters, digits, "_" and "-"."""
    tokenizer: PathText = "bytes"
    """"bytes", or a path to a tokenizer.json, relative to the run file."""
    tokenizer_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest of the tokenizer, filled in when the run is founded."""
    lost_text: Share | None = None
    """Share of the characters that the tokenizer may lose because it has no token for them;
    omitted: "0.1 %"."""
    validation_fraction: Fraction = 0.0
    """Fraction of the tokens, at the end of each text, that is held back for validation."""
    share: Literal["swarm", "own-copy"] | None = None
    """How other peers get the text: "swarm" sends them the tokens, from peer to peer; "own-copy"
    makes each peer bring a copy. Omitted: "swarm", up to 20 GB of tokens; filled in when the run is
    founded."""
    attention: Literal["documents"] | None = None
    """Scope of attention: "documents", the earlier tokens of the same document, whose positions
    start at 0; omitted: all earlier tokens of the sequence."""
    end_token: TokenNumber | None = None
    """Token that ends a document, with attention = "documents"; filled in when the run is
    founded."""
    answer_ends: tuple[TokenNumber, ...] | None = Field(default=None, max_length=MAX_ENDS)
    """Tokens of which each ends an answer; filled in when the run is founded. None: no token."""

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if not self.sources and self.source is None:
            refuse("source", "is missing", 'source = "text", or several: [data.sources.NAME]')
        if self.sources:
            what = "has no effect with [data.sources.NAME]"
            self.refuse_given(TextSource.model_fields, what, "write it under each of them")
        if self.sources and not any(self.weights.values()):
            refuse("sources", "every weight is 0: nothing to train on", "give one a weight of 1")
        if self.attention is None:
            what = 'has no effect without attention = "documents"'
            self.refuse_given(["end_token"], what, "remove it")
        if self.attention is not None and self.tokenizer == "bytes":
            what = 'with tokenizer = "bytes" the end of a document is a newline like any other'
            refuse("attention", what, "name a tokenizer.json that has an end-of-text token")
        if self.learns_answers and self.tokenizer == "bytes":
            what = "conversations need the model's own tokenizer and its chat template"
            refuse("tokenizer", what, 'tokenizer = "FOLDER/tokenizer.json"')
        return self

    @property
    def learns_answers(self) -> bool:
        """True if some text trains on its answers only, so that not every token is a target."""
        return any(text.train_on == ANSWERS for text in self.texts.values())

    @property
    def texts(self) -> Mapping[str, TextSource]:
        """Name → text, texts to train on before those for validation only, else sorted by name.

        A run with a single text has it under the empty name.
        """
        if not self.sources:
            return {"": self}
        return dict(sorted(self.sources.items(), key=lambda item: (not item[1].weight, item[0])))

    @property
    def weights(self) -> Mapping[str, int]:
        """Name → weight in the mixture, with the names and the order of `texts`."""
        return {name: getattr(text, "weight", 1) for name, text in self.texts.items()}

    @property
    def held_back(self) -> Sequence[str]:
        """Names of the texts that have a validation set."""
        is_cut = self.validation_fraction > 0
        return [name for name, weight in self.weights.items() if is_cut or not weight]

    def with_each(self, key: str, values: Mapping[str, str | float | None]) -> "Data":
        """Return a copy in which the texts named in `values` have another value of `key`."""
        updates = {name: {key: value} for name, value in values.items()}
        if not self.sources:
            return self.model_copy(update=updates.get("", {}))
        changed = {name: self.sources[name].model_copy(update=updates[name]) for name in updates}
        return self.model_copy(update={"sources": {**self.sources, **changed}})
