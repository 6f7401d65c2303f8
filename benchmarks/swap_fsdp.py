"""PyTorch's own way: FSDP2 with `CPUOffloadPolicy`, in a world of one.

Set as its documentation advises: each block its own group, parameters and optimizer states pinned
on the host, 16-bit computing with float32 reduction, fused AdamW on the CPU, and no gradient
synchronisation before the last micro-batch (until then gradients are summed on the device).
"""

import socket
from typing import Any

import torch
from swap_memory import Recomputed, decay_groups, host_model
from swap_setup import (
    BETAS,
    CLIP_NORM,
    EPSILON,
    LEARNING_RATE,
    WEIGHT_DECAY,
    MicroBatches,
    Setup,
    SideMissing,
)


class FullyShardedOffload:
    """Raises: SideMissing where this PyTorch lacks it."""

    def __init__(self, setup: Setup) -> None:
        try:
            import torch.distributed as dist
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import (
                CPUOffloadPolicy,
                MixedPrecisionPolicy,
                fully_shard,
            )
        except ImportError as problem:
            raise SideMissing(f"this PyTorch has no FSDP2: {problem}") from problem
        self.device = setup.torch_device
        on_gpu = setup.device == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            init_method=f"tcp://127.0.0.1:{free_port()}",
            rank=0,
            world_size=1,
        )
        self._end = dist.destroy_process_group
        mesh = init_device_mesh(setup.device, (1,))
        policy: dict[str, Any] = {
            "mesh": mesh,
            "mp_policy": MixedPrecisionPolicy(param_dtype=setup.dtype, reduce_dtype=torch.float32),
            "offload_policy": CPUOffloadPolicy(pin_memory=on_gpu),
        }
        self.model = host_model(setup, torch.float32)
        for number, block in enumerate(self.model.blocks):
            self.model.blocks[number] = fully_shard(Recomputed(block), **policy)
        fully_shard(self.model, **policy)
        self.optimizer = torch.optim.AdamW(
            decay_groups(list(self.model.parameters())),
            LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, fused=True,
        )  # fmt: skip

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

    def facts(self, trace: str | None) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._end()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
