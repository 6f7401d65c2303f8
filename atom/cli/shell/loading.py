"""Fast import of PyTorch for commands that trace a model."""

import gc
import importlib


def load_torch() -> None:
    """Import PyTorch and its exporter, a million objects that live as long as the process.

    The garbage collector would traverse them again and again, during the imports and the tracing,
    for more than a second in all.
    """
    gc.disable()
    try:
        importlib.import_module("torch.export._trace")
    finally:
        gc.freeze()
        gc.enable()
