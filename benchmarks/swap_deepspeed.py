"""DeepSpeed's ZeRO-2 and ZeRO-3 with optimizer (and parameters) on the host, in a world of one.

Set as its documentation advises: pinned memory, its own CPU Adam, communication overlapped,
gradients contiguous, and the cores bound as its launcher's `--bind_cores_to_rank` does for one
rank: all of them, and as many OpenMP threads. Blocks are recomputed as on the other sides.
"""

import os
from typing import Any

import torch
from swap_fsdp import free_port
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

SELDOM = 10**9


class DeepSpeedOffload:
    """`stage` 2 or 3. Raises: SideMissing where DeepSpeed is not installed."""

    def __init__(self, setup: Setup, stage: int) -> None:
        os.environ.setdefault("DS_ACCELERATOR", setup.device)
        try:
            import deepspeed
        except ImportError as problem:
            raise SideMissing(f"DeepSpeed is not installed ({problem})") from problem
        self.device = setup.torch_device
        os.environ.update(
            RANK="0", LOCAL_RANK="0", WORLD_SIZE="1",
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
        )  # fmt: skip
        backend = "nccl" if setup.device == "cuda" else "gloo"
        deepspeed.init_distributed(backend, auto_mpi_discovery=False, verbose=False)
        model = host_model(setup, setup.dtype)
        for number, block in enumerate(model.blocks):
            model.blocks[number] = Recomputed(block)
        self.engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=decay_groups(list(model.parameters())),
            config=_config(setup, stage),
        )

    def step(self, batches: MicroBatches) -> float:
        losses = []
        for batch in batches:
            loss = self.engine(**{k: v.to(self.device) for k, v in batch.items()})
            self.engine.backward(loss)
            self.engine.step()  # at the last micro-batch; before it, only counts
            losses.append(loss.detach())
        return torch.stack(losses).mean().item()

    def facts(self, trace: str | None) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        torch.distributed.destroy_process_group()


def _config(setup: Setup, stage: int) -> dict[str, Any]:
    on_host = {"device": "cpu", "pin_memory": setup.device == "cuda"}
    zero: dict[str, Any] = {
        "stage": stage,
        "offload_optimizer": on_host,
        "overlap_comm": True,
        "contiguous_gradients": True,
    }
    if stage == 3:
        zero["offload_param"] = on_host
    adamw = {
        "lr": LEARNING_RATE,
        "betas": list(BETAS),
        "eps": EPSILON,
        "weight_decay": WEIGHT_DECAY,
    }
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
