"""What operations cost in bytes and kernels: found on fake tensors, nothing is allocated."""
