"""Reading of an untrusted config.json: its size and values are checked, no code of it is executed.

Keys that choose implementations or name places are dropped. This module does not need
`transformers`.
"""

import json
import re
from pathlib import Path
from typing import Any

from atom.base.errors import ConfigError
from atom.base.files import read_bounded

MAX_CONFIG_BYTES = 2**20
"""Size limit of a file. Configs of quantized models may name thousands of layers."""
_TOO_LONG = "name the config.json of one model"
MAX_LAYERS = 4096
MAX_NUMBER = 2**31
MAX_DEPTH = 32
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, which a terminal may obey, except tab and newline."""
DROPPED_KEYS = frozenset(
    {
        "attn_implementation", "experts_implementation", "auto_map", "dtype", "torch_dtype",
        "transformers_version", "use_cache", "name_or_path", "kernel_config", "use_kernels",
        "trust_remote_code", "custom_pipelines", "id2label", "label2id", "quantization_config",
    }
)  # fmt: skip
"""Keys that choose an implementation, name a place, or do not describe the model.

The quantization describes the weights of a folder: a run trains the model that is not quantized.

Keys that begin with an underscore are dropped as well.
"""


def config_text(path: Path) -> str:
    """Return the text of a config.json, not yet checked.

    Raises:
        ConfigError: the file cannot be read, or is not UTF-8.
    """
    try:
        return read_bounded(path, MAX_CONFIG_BYTES, _TOO_LONG).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: not UTF-8 text", "save it as UTF-8") from error


def read_config(text: str) -> dict[str, Any]:
    """Return the keys of an untrusted config.json that describe the model.

    Raises:
        ConfigError: the text is too long, not JSON, or has values outside the bounds.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_CONFIG_BYTES:
        raise ConfigError(
            f"the config.json is longer than {MAX_CONFIG_BYTES // 1024} KiB", _TOO_LONG
        )
    try:
        content = json.loads(text, object_hook=_untagged)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the config.json is not JSON: {error}", "check its commas and quotes"
        ) from None
    if not isinstance(content, dict):
        raise ConfigError(
            "the config.json is not a JSON object", "it must begin with { and name the model_type"
        )
    kind = content.get("model_type")
    if not isinstance(kind, str) or not kind.replace("_", "").replace("-", "").isalnum():
        raise ConfigError(
            "the config.json names no model_type", 'add it, such as "model_type": "llama"'
        )
    checked: dict[str, Any] = _checked(content, "", MAX_DEPTH)
    return checked


def canonical_config(text: str) -> str:
    """Return the config.json in a canonical form: equal models give equal texts.

    Numbers that are not finite are written as Python's JSON does, such as `Infinity`.

    Raises:
        ConfigError: `read_config` refuses the text.
    """
    return json.dumps(read_config(text), sort_keys=True, separators=(",", ":"))


def _untagged(content: dict[str, Any]) -> Any:
    """Return the number that `{"__float__": "Infinity"}` stands for, or the object itself.

    `transformers` 5 writes numbers like this if JSON has none for them.
    """
    tag = content.get("__float__")
    tagged = len(content) == 1 and tag in ("Infinity", "-Infinity", "NaN")
    return float(tag) if tagged else content  # type: ignore[arg-type]


def _checked(value: Any, key: str, depth: int) -> Any:
    """Return a value without dropped keys, after checking it. Raises: ConfigError."""
    if depth < 0:
        raise ConfigError(f"the config.json is nested more than {MAX_DEPTH} deep", _TOO_LONG)
    if isinstance(value, dict):
        return {
            _checked(name, "", depth): _checked(inner, name, depth - 1)
            for name, inner in value.items()
            if not name.startswith("_") and name not in DROPPED_KEYS
        }
    if isinstance(value, list):
        return [_checked(inner, "", depth - 1) for inner in value]
    if isinstance(value, str) and _CONTROL.search(value):  # errors show some of these texts
        raise ConfigError("the config.json holds control characters", "remove them from its texts")
    # The library builds lists of this length, such as one of the layers' types.
    if "layer" in key and isinstance(value, int) and value > MAX_LAYERS:
        raise ConfigError(f"{key} is {value}", f"a model has at most {MAX_LAYERS} layers")
    if isinstance(value, int) and not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise ConfigError(
            f"the config.json holds {value}", f"whole numbers are at most {MAX_NUMBER}"
        )
    return value
