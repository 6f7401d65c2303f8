"""Is there the GPU that a peer file names, and can it compute in a run's numbers?"""

import torch

from atom.base.errors import DeviceError


def require_gpu(index: int, precision: torch.dtype) -> None:
    """Raises: DeviceError."""
    if not torch.cuda.is_available():
        raise DeviceError(
            "this machine has no usable CUDA GPU",
            'check the driver, or set [device] kind = "cpu" in the peer file; '
            "to plan for another machine: --assume",
        )
    if index >= torch.cuda.device_count():
        raise DeviceError(
            f"there is no GPU {index}; this machine has {torch.cuda.device_count()}",
            "count from 0",
        )
    with torch.cuda.device(index):
        # Emulated, a matrix product in bfloat16 is many times slower than in float16.
        if precision == torch.bfloat16 and not torch.cuda.is_bf16_supported(False):
            raise DeviceError(
                f"{torch.cuda.get_device_name(index)} has no bfloat16",
                'only runs with precision = "float16" or "float32" suit it',
            )
