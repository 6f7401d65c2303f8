"""Numbers on which arithmetic that is only nearly the host kernel's shows that it is not."""

import torch
from torch import Tensor

SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 2.0**-149, -(2.0**-149), 2.0**-126, 1.1754942e-38, -3e-39, 1e38,
    -1.5e38, 1e19, -2e19, 1.8446744e19, 1e-23, -1e-20, 1 + 2.0**-23, -(1 - 2.0**-24), 0.1,
)  # fmt: skip


def numbers(count: int, seed: int, widest: int = 30) -> Tensor:
    """[count] float32: a quarter each of special ones, of usual ones, of numbers of all sizes up to
    2^widest, and of subnormal ones."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(4, (count,), generator=generator)
    usual = torch.randn(count, generator=generator)
    sizes = torch.randint(-140, widest, (count,), generator=generator).float()
    tiny = torch.randint(1, 2**23, (count,), generator=generator).to(torch.int32)
    special = torch.tensor(SPECIAL)[torch.randint(len(SPECIAL), (count,), generator=generator)]
    choices = torch.stack([special, usual, usual * 2.0**sizes, tiny.view(torch.float32)])
    return choices.gather(0, kinds[None])[0]
