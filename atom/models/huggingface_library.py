"""The library `transformers`: its configs and classes, and the folders that it reads and writes.

Only classes of the installed library are used, and nothing is downloaded. The library's own lists
tell which names of tensors are old ones, and which tensors of a folder are of no use.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from atom.base.errors import ConfigError
from atom.models.huggingface_config import DROPPED_KEYS
from atom.models.source import Outside, install_package, needs_extra, outside_of

Config = Any
"""Instance of `transformers.PretrainedConfig`; the library's types are dynamic."""

_DEQUANTIZED = ("fp8", "mxfp4", "compressed-tensors", "bitsandbytes")
"""Quantization that the library undoes on a CPU.

The last two need the package of that name, and the first one needs `accelerate`.
"""
_OLD_CONSTANT = re.compile(
    r"\.(masked_bias|attn\.bias|attention\.bias|causal_mask|(cos|sin)_cached|inv_freq)$"
)
"""Masks and tables in files of old versions, which the library computes and warns of at most."""
_NOT_IN_PEFT = {
    **dict.fromkeys(("falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"), ("out_proj",)),
    "mixtral": ("gate", "w1", "w2", "w3"),
    "qwen2_moe": ("gate", "gate_proj", "up_proj", "down_proj"),
}
"""Kind of model → ends of the names of linear layers whose adapters `peft` does not load."""


@cache
def library() -> Any:
    """Import `transformers`, with quiet logging.

    Raises:
        ConfigError: `transformers` is not installed.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    with needs_extra("hf", "a model from a Hugging Face config"):
        import transformers
        from transformers.utils import logging
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


def config_and_class(content: Mapping[str, Any]) -> tuple[Config, type]:
    """Return the library's config object and class of causal language model.

    Raises:
        ConfigError: the library has no such model, or refuses the config.
    """
    transformers = library()
    kind, configs = content["model_type"], transformers.CONFIG_MAPPING
    if kind not in configs:
        raise ConfigError(
            f"transformers {transformers.__version__} knows no model_type {kind!r}",
            'code that a config brings along is never run; write a module = "…:factory" for it',
        )
    with library_errors():
        config = configs[kind].from_dict(dict(content))
    kinds = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")
    known = [getattr(transformers, f"MODEL_FOR_{each}_MAPPING") for each in kinds]
    models: list[type] = [each[type(config)] for each in known if type(config) in each]
    named = content.get("architectures")
    chosen = [each for each in models if not named or each.__name__ in named]
    if not chosen or config.is_encoder_decoder:
        raise ConfigError(
            f"{', '.join(map(str, named or [kind]))[:80]} is not a causal language model",
            "only decoders that predict the next token can be trained on text",
        )
    return config, chosen[0]


def library_format(model: nn.Module, content: Mapping[str, Any]) -> Outside:
    """Return the folder format in which the library itself writes a model.

    Args:
        model: the model, an instance of a subclass of the library's class.
        content: keys of its config.json.

    Raises:
        ConfigError: as `config_and_class`.
    """
    own: Any = model
    config, kind = config_and_class(content)
    peft: dict[str, Any] = {"task_type": "CAUSAL_LM"}
    if library().MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None) is not kind:
        named = {"base_model_class": kind.__name__, "parent_library": kind.__module__}
        peft = {"task_type": None, "auto_mapping": named}
    converted, names = _conversion(own)
    return replace(
        outside_of(model, frozenset(getattr(own, "all_tied_weights_keys", None) or ())),
        config=all_keys(config) | {"architectures": [kind.__name__]},
        own_name=_own_names(own),
        ignored=partial(_is_ignored, own),
        written_names=names,
        converted=converted,
        loaded=partial(_loaded, content),
        peft=peft,
    )


def _loaded(
    content: Mapping[str, Any], folder: str, quantization: Mapping[str, Any] | None
) -> dict[str, Tensor]:
    """Load a folder's parameters and buffers with the library, all in memory at once.

    Args:
        content: keys of the run's config.json.
        folder: the folder with safetensors files.
        quantization: the folder's quantization_config; None: the weights are not quantized.

    Raises:
        ConfigError: the folder lacks a tensor, has an unknown one, or another shape, or is
            quantized in a way that cannot be undone here.
    """
    config, model_class = config_and_class(content)
    method = str(quantization and dict(quantization).get("quant_method"))
    if quantization:
        if method not in _DEQUANTIZED:
            raise ConfigError(
                f"{folder} holds weights quantized by {method[:40]!r}, which cannot be trained",
                "begin from the same model's weights in 16 or 32 bits",
            )
        undone = {} if method == "bitsandbytes" else {"dequantize": True}
        config.quantization_config = {**quantization, **undone}
    try:
        with library_errors():
            model, report = model_class.from_pretrained(  # type: ignore[attr-defined]
                folder,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
            if method == "bitsandbytes":
                model = model.dequantize()
    except ImportError as error:
        what = f"{folder} holds weights quantized by {method}, which need a package: {error}"
        package = "accelerate" if method == "fp8" else method
        raise ConfigError(what, f"`{install_package(package)}`") from error
    for key, found in report.items():
        names = sorted(name for name in map(str, found) if not _OLD_CONSTANT.search(name))
        if names:  # of tensors that are missing, unexpected, or of another shape
            what = f"{folder} has {key.replace('_', ' ')}: {', '.join(names[:3])[:300]}"
            raise ConfigError(what, "use a folder of the run's model")
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {name: value.detach() for name, value in tensors}


def not_in_peft(model_type: str) -> Collection[str]:
    """Return the ends of the names of linear layers whose adapters `peft` does not load."""
    from transformers.conversion_mapping import _MODEL_TO_CONVERSION_PATTERN

    return _NOT_IN_PEFT.get(_MODEL_TO_CONVERSION_PATTERN.get(model_type, model_type), ())


def all_keys(config: Config) -> dict[str, Any]:
    """Return all keys of a config.json, so that defaults of another version have no effect.

    Numbers that JSON does not have, such as infinity, are tagged as by the library.
    """
    return {
        key: config._encode_special_floats(value)
        for key, value in config.to_dict().items()
        if key not in DROPPED_KEYS and not key.startswith("_")
    }


def _conversion(
    model: Any,
) -> tuple[Callable[[dict[str, Tensor]], dict[str, Tensor]] | None, dict[str, str]]:
    """Return the library's changes of this architecture's weights before writing.

    Returns:
        The conversion of all tensors, or None if the library changes names at most; and the names
        of the tensors → the names that are written.
    """
    from transformers import conversion_mapping, core_model_loading

    reverted = partial(core_model_loading.revert_weight_conversion, model)
    steps = conversion_mapping.get_model_conversion_mapping(model, add_legacy=False)
    if not all(isinstance(step, core_model_loading.WeightRenaming) for step in steps):
        return reverted, {}
    # The size of a tensor without memory marks its name.
    names = list(model.state_dict())
    marked = {name: torch.empty(size, device="meta") for size, name in enumerate(names)}
    return None, {names[value.numel()]: name for name, value in reverted(marked).items()}


def _own_names(model: Any) -> Callable[[str], str | None]:
    """Return the function that renames a folder's tensor as the library does (an `own_name`)."""
    from transformers import conversion_mapping, core_model_loading

    steps, state = conversion_mapping.get_model_conversion_mapping(model), model.state_dict()
    renamings = [each for each in steps if isinstance(each, core_model_loading.WeightRenaming)]
    converters = [each for each in steps if isinstance(each, core_model_loading.WeightConverter)]

    def own_name(name: str) -> str | None:
        renamed, converter = core_model_loading.rename_source_key(
            name, renamings, converters, model.base_model_prefix, state
        )
        if renamed not in state and name in state:
            return name
        return renamed if converter is None else None

    return own_name


def _is_ignored(model: Any, name: str) -> bool:
    """Return True if the library ignores an unknown tensor, or if it is an old constant."""
    found = SimpleNamespace(missing_keys=set(), unexpected_keys={name})
    model._adjust_missing_and_unexpected_keys(found)
    return not found.unexpected_keys or _OLD_CONSTANT.search(name) is not None


@contextmanager
def library_errors() -> Iterator[None]:
    """Turn an error of the library within the context into a ConfigError about the config.

    The library raises exceptions of many kinds. An ImportError, for lack of a package, passes.
    """
    try:
        yield
    except (ConfigError, ImportError):
        raise
    except Exception as error:
        last_line = str(error).strip().rpartition("\n")[2].strip() or type(error).__name__
        raise ConfigError(
            f"transformers {library().__version__} cannot use the config: {last_line[:300]}",
            "check the key that the message names in config.json",
        ) from error
