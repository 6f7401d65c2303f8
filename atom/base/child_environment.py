"""What Python processes that this one starts find around them."""

import os
from pathlib import Path

_ABOVE = Path(__file__).resolve().parents[2]
"""The folder that `atom` lies in."""


def child_environment() -> dict[str, str]:
    """Atom importable as it is here, no GPU, one arithmetic thread."""
    paths = [str(_ABOVE), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
