"""Keys of the noise that moments in sixteen bits are rounded with: see `noise_of` in
`host_kernels.c`."""


def noise_key(seed: int, step: int) -> int:
    """64 bits that differ from step to step and from run to run."""
    return mixed(mixed(seed) ^ step)


def mixed(number: int) -> int:
    """The finaliser of SplitMix64, as the kernel has it: a permutation of 64-bit numbers."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
    return number ^ number >> 31
