"""[data]: what a run trains on."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from atom.config.section import WORDS, Bytes, Fraction, PathText, Section, refuse

Name = Annotated[str, Field(min_length=1, max_length=256, pattern=WORDS)]
_TEXT_KEYS = ("tokenizer", "tokenizer_sha256", "max_bytes")
_TABLE_KEYS = ("path", "name", "split", "revision", "text_field")


class Data(Section):
    """[data]"""

    source: Literal["text", "python-stdlib", "datasets", "module"]
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
    revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    """Of a table of the hub: its commit, 40 hex digits; filled in when the run is founded."""
    tokenizer: PathText = "bytes"
    """"bytes", or a path to a tokenizer.json, relative to the run file."""
    tokenizer_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest of the tokenizer, filled in when the run is founded."""
    validation_fraction: Fraction = 0.0
    """Share of the tokens, at the end, that is held back for validation."""
    max_bytes: Annotated[Bytes, Field(ge=1)] | None = None
    """Use only this much of the text, from its start: "8 MB"."""
    text_field: Name | None = None
    """Column of a table that holds the text; omitted: "text"."""

    @model_validator(mode="after")
    def _check(self) -> "Data":
        if self.source == "text" and not self.paths:
            refuse("paths", 'missing: source = "text" needs files', 'paths = ["input.txt"]')
        if self.source != "text" and self.paths:
            refuse("paths", f'source = "{self.source}" takes no paths', 'use source = "text"')
        if self.source == "module":
            for key in _TEXT_KEYS:
                if key in self.model_fields_set:
                    refuse(key, "the module brings its own dataset, not text", "remove it")
        self._check_table()
        return self

    def _check_table(self) -> None:
        if self.source != "datasets":
            for key in _TABLE_KEYS:
                if key in self.model_fields_set:
                    what = f'source = "{self.source}" has no {key}'
                    refuse(key, what, 'use source = "datasets", or remove it')
            return
        if self.path is None:
            what = 'missing: source = "datasets" needs a folder or a name of the hub'
            refuse("path", what, 'path = "OWNER/NAME"')
