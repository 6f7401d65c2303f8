"""Rivals that keep parameters and optimizer on the host: DeepSpeed's ZeRO-2 and ZeRO-3, and FSDP2.

Each is set as its documentation advises, in a world of one, with blocks recomputed. DeepSpeed:
pinned memory, its own CPU Adam, communication overlapped, gradients contiguous, one OpenMP thread
per core, as its launcher's `--bind_cores_to_rank` binds one rank. FSDP2: each block its own
group, `CPUOffloadPolicy` with pinned memory, 16-bit computing, float32 reduction, fused AdamW on
the CPU, and no gradient synchronisation before the last micro-batch (until then gradients are
summed on the device).
"""

import os
import socket
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.swap.in_memory import Recomputed, decay_groups, host_model
from benchmarks.swap.setup import (
    ADAMW,
    BETAS,
    CLIP_NORM,
    EPSILON,
    LEARNING_RATE,
    WEIGHT_DECAY,
    MicroBatches,
    Setup,
    SideMissing,
)
from benchmarks.swap.sides import Plain

SELDOM = 10**9


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


class DeepSpeedOffload(Plain):
    """ZeRO of stage 2 or 3.

    Raises:
        SideMissing: DeepSpeed is not installed.
    """

    def __init__(self, setup: Setup, stage: int) -> None:
        os.environ.setdefault("DS_ACCELERATOR", setup.device)
        try:
            import deepspeed
        except ImportError as problem:
            raise SideMissing(f"DeepSpeed is not installed ({problem})") from problem
        self.device = setup.torch_device
        os.environ.update(
            RANK="0", LOCAL_RANK="0", WORLD_SIZE="1",
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_port()),
        )  # fmt: skip
        backend = "nccl" if setup.device == "cuda" else "gloo"
        deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False)
        model = host_model(setup, setup.dtype)
        for number, block in enumerate(model.blocks):
            model.blocks[number] = Recomputed(block)
        groups, config = decay_groups(list(model.parameters())), _config(setup, stage)
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config)

    def step(self, batches: MicroBatches) -> float:
        losses = []
        for batch in batches:
            loss = self.engine(**{k: v.to(self.device) for k, v in batch.items()})
            self.engine.backward(loss)
            self.engine.step()  # only the last micro-batch changes the weights
            losses.append(loss.detach())
        return torch.stack(losses).mean().item()

    def close(self) -> None:
        dist.destroy_process_group()


def _config(setup: Setup, stage: int) -> dict[str, Any]:
    on_host = {"device": "cpu", "pin_memory": setup.device == "cuda"}
    zero: dict[str, Any] = {
        "stage": stage, "offload_optimizer": on_host, "overlap_comm": True,
        "contiguous_gradients": True,
    }  # fmt: skip
    if stage == 3:
        zero["offload_param"] = on_host
    adamw = {
        "lr": LEARNING_RATE, "betas": list(BETAS), "eps": EPSILON, "weight_decay": WEIGHT_DECAY
    }  # fmt: skip
    return {
        "train_micro_batch_size_per_gpu": setup.sequences,
        "gradient_accumulation_steps": setup.micro_batches,
        "gradient_clipping": CLIP_NORM,
        "bf16": {"enabled": setup.dtype == torch.bfloat16},
        "fp16": {"enabled": setup.dtype == torch.float16},
        "optimizer": {"type": "AdamW", "params": adamw},
        "zero_optimization": zero,
        "steps_per_print": SELDOM,
    }


def _port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
