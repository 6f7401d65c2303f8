"""A config.json as data, and maybe a stranger's: bounded and checked, nothing of it is executed.

Keys that choose implementations or name places are dropped. Needs no `transformers`.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from atom.models.source import SourceError

MAX_CONFIG_BYTES = 32 * 1024
MAX_LAYERS = 4096
MAX_NUMBER = 2**31
MAX_DEPTH = 32
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal may obey; blanks and ends of lines are none of it."""
DROPPED_KEYS = frozenset(
    {
        "attn_implementation", "experts_implementation", "auto_map", "dtype", "torch_dtype",
        "transformers_version", "use_cache", "name_or_path", "kernel_config", "use_kernels",
        "trust_remote_code", "custom_pipelines", "id2label", "label2id",
    }
)  # fmt: skip
"""Keys that choose an implementation, name a place, or say nothing about the model. Those that
begin with an underscore are dropped as well."""


def read_config(text: str) -> dict[str, Any]:
    """The keys of a config.json that describe the model. Raises: SourceError.

    Anybody's bytes: bounded, checked, nothing of it is executed.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_CONFIG_BYTES:
        raise SourceError(
            f"the config is longer than {MAX_CONFIG_BYTES // 1024} KiB",
            "name the config.json of one model",
        )
    try:
        content = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"the config is not JSON: {error}", "check its commas and quotes"
        ) from None
    if not isinstance(content, dict):
        raise SourceError(
            "the config is no JSON object", "it begins with { and names the model_type"
        )
    if content.get("quantization_config") is not None:
        raise SourceError(
            "the config asks for quantized weights, which cannot be trained",
            "take out quantization_config",
        )
    _check_model_type(content)
    kept: dict[str, Any] = _kept(content, "", MAX_DEPTH)
    return kept


def canonical_config(text: str) -> str:
    """Equal models give equal texts. Raises: SourceError."""
    return json.dumps(read_config(text), sort_keys=True, separators=(",", ":"))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _check_model_type(content: Mapping[str, Any]) -> None:
    kind = content.get("model_type")
    if not isinstance(kind, str) or not kind.replace("_", "").replace("-", "").isalnum():
        raise SourceError(
            "the config names no model_type", 'such as "model_type": "llama"; see config.json'
        )


def _kept(value: Any, key: str, depth: int) -> Any:
    """What describes the model, checked before anything is built from it. Raises: SourceError."""
    if depth < 0:
        raise SourceError(
            f"the config is nested more than {MAX_DEPTH} deep", "name the config.json of one model"
        )
    if isinstance(value, dict):
        return {
            _kept(name, "", depth): _kept(inner, name, depth - 1)
            for name, inner in value.items()
            if not name.startswith("_") and name not in DROPPED_KEYS
        }
    if isinstance(value, list):
        return [_kept(inner, "", depth - 1) for inner in value]
    if isinstance(value, str) and _CONTROL.search(value):  # errors show some of them
        raise SourceError("the config holds control characters", "take them out of its texts")
    if "layer" in key and isinstance(value, int) and value > MAX_LAYERS:  # lists get that long
        raise SourceError(f"{key} is {value}", f"a model has at most {MAX_LAYERS} layers")
    too_large = isinstance(value, int) and not -MAX_NUMBER <= value <= MAX_NUMBER
    if too_large or (isinstance(value, float) and not math.isfinite(value)):
        raise SourceError(f"the config holds {value}", f"whole numbers are at most {MAX_NUMBER}")
    return value
