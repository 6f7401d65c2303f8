"""PyTorch's own FSDP2 with parameters and optimizer on the host.

It is set as its documentation advises, in a world of one, with blocks recomputed: each block its
own group, `CPUOffloadPolicy` with pinned memory, 16-bit computing, float32 reduction, fused AdamW
on the CPU, and no gradient synchronisation before the last micro-batch (until then gradients are
summed on the device).
"""

import socket
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.swap.in_memory import Recomputed, decay_groups, host_model
from benchmarks.swap.setup import (
    ADAMW,
    CLIP_NORM,
    MicroBatches,
    Setup,
    SideMissing,
)
from benchmarks.swap.sides import Plain


class FullyShardedOffload(Plain):
    """PyTorch's own way.

    Raises:
        SideMissing: this PyTorch has no FSDP2.
    """

    def __init__(self, setup: Setup) -> None:
        try:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
        except ImportError as problem:
            raise SideMissing(f"this PyTorch has no FSDP2: {problem}") from problem
        self.device, on_gpu = setup.torch_device, setup.device == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.device)
        backend, meeting = "cpu:gloo,cuda:nccl" if on_gpu else "gloo", f"tcp://127.0.0.1:{_port()}"
        dist.init_process_group(backend, init_method=meeting, rank=0, world_size=1)
        mixed = MixedPrecisionPolicy(param_dtype=setup.dtype, reduce_dtype=torch.float32)
        policy: dict[str, Any] = {
            "mesh": init_device_mesh(setup.device, (1,)),
            "mp_policy": mixed,
            "offload_policy": CPUOffloadPolicy(pin_memory=on_gpu),
        }
        self.model = host_model(setup, torch.float32)
        for number, block in enumerate(self.model.blocks):
            self.model.blocks[number] = fully_shard(Recomputed(block), **policy)
        fully_shard(self.model, **policy)
        groups = decay_groups(list(self.model.parameters()))
        self.optimizer = torch.optim.AdamW(groups, **ADAMW, fused=True)

    def step(self, batches: MicroBatches) -> float:
        losses = []
        for number, batch in enumerate(batches, 1):
            last = number == len(batches)
            self.model.set_requires_gradient_sync(last)  # type: ignore[operator]
            loss = self.model(**{k: v.to(self.device) for k, v in batch.items()})
            (loss / len(batches)).backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack(losses).mean().item()

    def close(self) -> None:
        dist.destroy_process_group()


def _port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
