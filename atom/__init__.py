"""Atom: train models larger than the GPU, alone or with volunteers.

`offload` is the front door for one process. The daemon that trains in a swarm is the command
`atom`.
"""

from typing import TYPE_CHECKING, Any

from atom.base import __version__

if TYPE_CHECKING:
    from atom.offloaded_model import OffloadedModel, offload
    from atom.optim.adamw import AdamW, AdamW8Bit
    from atom.optim.momentum import SGD, Lion
    from atom.optim.muon import Muon
    from atom.optim.rate import RateSettings as Schedule

__all__ = [  # noqa: RUF022 - sorted as `sorted` does
    "AdamW", "AdamW8Bit", "Lion", "Muon", "OffloadedModel", "SGD", "Schedule", "__version__",
    "offload",
]  # fmt: skip

_LAZY_NAMES = {
    "AdamW": ("atom.optim.adamw", "AdamW"),
    "AdamW8Bit": ("atom.optim.adamw", "AdamW8Bit"),
    "Lion": ("atom.optim.momentum", "Lion"),
    "Muon": ("atom.optim.muon", "Muon"),
    "OffloadedModel": ("atom.offloaded_model", "OffloadedModel"),
    "SGD": ("atom.optim.momentum", "SGD"),
    "Schedule": ("atom.optim.rate", "RateSettings"),
    "offload": ("atom.offloaded_model", "offload"),
}
"""Public name → (module, attribute), imported on first access.

Commands and the DHT process start without importing PyTorch.
"""


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _LAZY_NAMES:
        raise AttributeError(f"module 'atom' has no attribute {name!r}")
    module, attribute = _LAZY_NAMES[name]
    return getattr(importlib.import_module(module), attribute)
