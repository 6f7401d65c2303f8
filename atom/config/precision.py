"""Number formats that a model may compute in, by PyTorch's names. Light: shells ask for them."""

from typing import Literal, get_args

Precision = Literal["float32", "bfloat16", "float16"]
PRECISION_NAMES: tuple[Precision, ...] = get_args(Precision)
