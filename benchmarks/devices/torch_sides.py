"""PyTorch's own ways to use several devices, one process per device.

Data parallel (DDP), fully sharded (FSDP2: each block a group, gathered for each forward and
backward, gradients scattered after each micro-batch: the least memory), and pipelines of stages
with as many blocks each, or one more. Over gloo, or NCCL where devices are GPUs.

The model, its first values, micro-batches and AdamW equal Atom's. On a CPU computing
sleeps: a forward by the layer's parameters, a backward twice as long. Nothing is recomputed. The
memory of a process is read from malloc after each layer, because other threads free sent tensors.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from atom.models.gpt3 import GPT3, GPT3Config, initial_value, parameter_shapes
from benchmarks.papers.pipeline import SCHEDULES
from benchmarks.shared.device_memory import Allocated
from benchmarks.shared.members import spawned
from benchmarks.swap.in_memory import decay_groups
from benchmarks.swap.setup import BETAS, EPSILON, LEARNING_RATE, SEED, WEIGHT_DECAY

INTERLEAVED = "interleaved 1F1B"
STAGES_OF_A_DEVICE = {INTERLEAVED: 2}
UNTIMED_STEPS = 2
"""An optimizer makes its state in the first step, DDP rebuilds its buckets in the second."""


@dataclass(frozen=True)
class Work:
    """Model and steps of all sides."""

    config: GPT3Config
    on_gpus: bool
    block_s: float
    """Seconds of a block's forward on a micro-batch. 0: nothing sleeps."""
    micro_batches: int
    """Micro-batches of one sequence in each step."""
    steps: int

    @property
    def element_s(self) -> float:
        """Seconds of a forward per parameter."""
        shapes = parameter_shapes(self.config).items()
        block = sum(math.prod(shape) for name, shape in shapes if name.startswith("blocks.0."))
        return self.block_s / block

    def tokens(self) -> Tensor:
        """Return the tokens of a step, [micro-batches, 1, tokens]; they are the targets, too."""
        shape = (self.micro_batches, 1, self.config.sequence_tokens)
        generator = torch.Generator().manual_seed(SEED)
        return torch.randint(self.config.vocabulary_size, shape, generator=generator)


@dataclass(frozen=True)
class Process:
    """One process of a side."""

    side: str
    rank: int
    count: int
    device: torch.device
    allocated: Allocated


# --- computing that sleeps ----------------------------------------------------------------------


class _Enters(torch.autograd.Function):
    """Begin of a layer's forward, end of its backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: "_Layer") -> Tensor:
        ctx.layer = layer
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.layer.sleep(2)
        return gradient, None


class _Leaves(torch.autograd.Function):
    """End of a layer's forward, begin of its backward."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, layer: "_Layer") -> Tensor:
        ctx.layer = layer
        return outputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.layer.began = time.perf_counter()
        if not ctx.layer.enters_backward:
            ctx.layer.sleep(2)
        return gradient, None


class _Layer:
    """Layer between two modules that sleeps in the place of computing."""

    def __init__(
        self, first: nn.Module, last: nn.Module, forward_s: float, look: Callable[[], None]
    ) -> None:
        """Hook a layer.

        Args:
            first: first module of the layer.
            last: last module of the layer.
            forward_s: seconds of the forward; the backward takes twice as long.
            look: called after each computation.
        """
        self.forward_s, self.began, self.enters_backward = forward_s, 0.0, False
        self._look = look
        first.register_forward_pre_hook(self._enter)
        last.register_forward_hook(self._leave)

    def _enter(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.began = time.perf_counter()
        self.enters_backward = inputs[0].requires_grad
        return (_Enters.apply(inputs[0], self), *inputs[1:]) if self.enters_backward else inputs

    def _leave(self, _: nn.Module, inputs: object, outputs: Tensor) -> Tensor:
        self.sleep(1)
        left: Tensor = _Leaves.apply(outputs, self)
        return left

    def sleep(self, forwards: int) -> None:
        self._look()
        until = self.began + forwards * self.forward_s
        time.sleep(max(until - time.perf_counter(), 0.0))  # stands for a device's computing


def _make_sleep(model: GPT3, end: nn.Module, work: Work, process: Process) -> None:
    """Let all layers sleep: the embedding, the blocks, and the head, which ends with `end`."""
    if work.block_s:
        head = nn.ModuleList((model.final_norm, model.embedding.tokens))
        layers = [(each, each, each) for each in (model.embedding, *model.blocks)]
        for first, last, whole in (*layers, (model.final_norm, end, head)):
            forward_s = work.element_s * sum(p.numel() for p in whole.parameters())
            _Layer(first, last, forward_s, process.allocated.look)


# --- sides --------------------------------------------------------------------------------------

Step = Callable[[], Sequence[float]]
"""Function that takes a step and returns the losses of micro-batches that ended here."""


def _distributed(work: Work, process: Process) -> Step:
    model = GPT3(work.config, device="meta").to_empty(device=process.device)
    _make_sleep(model, model, work, process)
    _fill(model, work.config)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    mine, optimizer = _shard(work, process), _adamw(model)

    def step() -> list[float]:
        losses = []
        for number, tokens in enumerate(mine, 1):
            parallel.require_backward_grad_sync = number == len(mine)
            losses.append(_backward(parallel, tokens, len(mine)))
        _update(optimizer)
        return losses

    return step


def _sharded(work: Work, process: Process) -> Step:
    model = GPT3(work.config, device="meta")
    _make_sleep(model, model, work, process)
    for module in (*model.blocks, model):
        fully_shard(module)
    _fill(model.to_empty(device=process.device), work.config)
    mine, optimizer = _shard(work, process), _adamw(model)

    def step() -> list[float]:
        losses = [_backward(model, tokens, len(mine)) for tokens in mine]
        _update(optimizer)
        return losses

    return step


def _shard(work: Work, process: Process) -> Tensor:
    return work.tokens()[process.rank :: process.count].to(process.device)


def _backward(model: nn.Module, tokens: Tensor, count: int) -> float:
    loss = model(tokens=tokens, targets=tokens)
    (loss / count).backward()
    return float(loss.detach())


class _Stage(nn.Module):
    """Successive blocks of the model; the first stage has the embedding, the last the head."""

    def __init__(self, model: GPT3, number: int, count: int) -> None:
        super().__init__()
        self.is_first, self.is_last = number == 0, number == count - 1
        begin, end = (len(model.blocks) * n // count for n in (number, number + 1))
        mine = ((str(n), model.blocks[n]) for n in range(begin, end))
        self.blocks = nn.ModuleDict(dict(mine))  # names as in GPT3
        if self.is_first or self.is_last:
            self.embedding = model.embedding
        if self.is_last:
            self.final_norm = model.final_norm

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute a stage: tokens [B, S] or values [B, S, D] → values, or logits [B, S, V]."""
        if self.is_first:
            hidden = self.embedding(hidden)
        for block in self.blocks.values():
            hidden = block(hidden)
        if self.is_last:
            hidden = self.final_norm(hidden)
            hidden = functional.linear(hidden, self.embedding.tokens.weight)
        return hidden


def _pipeline(work: Work, process: Process) -> Step:
    name, rank, count = process.side, process.rank, process.count
    of_each = STAGES_OF_A_DEVICE.get(name, 1)
    numbers = range(rank, of_each * count, count)
    modules = [_stage(work, number, of_each * count, process) for number in numbers]
    placed = [
        PipelineStage(module, number, of_each * count, process.device)
        for module, number in zip(modules, numbers, strict=True)
    ]
    schedule: Any = (
        ScheduleInterleaved1F1B(placed, work.micro_batches, loss_fn=_loss)
        if of_each > 1
        else SCHEDULES[name](placed[0], work.micro_batches, loss_fn=_loss)
    )
    tokens = work.tokens().flatten(0, 1).to(process.device)
    ends = dist.new_group(sorted({0, count - 1}))
    tied = [m.embedding.tokens.weight for m in modules if m.is_first or m.is_last]
    optimizer = _adamw(nn.ModuleList(modules))
    inputs, is_last = (tokens,) if rank == 0 else (), rank == count - 1

    def step() -> list[float]:
        losses = list[Tensor]()
        more = {"target": tokens, "losses": losses} if is_last else {}
        schedule.step(*inputs, return_outputs=False, **more)
        if tied:  # the first stage and the last have one copy each
            total = torch.stack([weight.grad for weight in tied]).sum(0)
            dist.all_reduce(total, group=ends)
            for weight in tied:
                weight.grad = total
        _update(optimizer)
        return [float(each.detach()) for each in losses]

    return step


def _stage(work: Work, number: int, count: int, process: Process) -> _Stage:
    model = GPT3(work.config, device="meta")
    stage = _Stage(model, number, count)
    _make_sleep(model, stage if stage.is_last else model, work, process)
    _fill(stage.to_empty(device=process.device), work.config)
    return stage


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def _fill(model: nn.Module, config: GPT3Config) -> None:
    """Fill a model with the first values."""
    for name, parameter in model.named_parameters():
        value = initial_value(config, name, tuple(parameter.shape), SEED).to(parameter.device)
        if isinstance(parameter, DTensor):
            value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
        parameter.copy_(value)


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    groups = decay_groups(list(model.parameters()))
    return torch.optim.AdamW(groups, LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, fused=True)


def _update(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


PLAIN = "DDP"
"""Side that is plain PyTorch on one device; all others need several."""
SIDES: dict[str, Callable[[Work, Process], Step]] = {
    PLAIN: _distributed,
    "FSDP2": _sharded,
    **dict.fromkeys((*SCHEDULES, INTERLEAVED), _pipeline),
}


# --- a process for each device ------------------------------------------------------------------


def measured(side: str, count: int, work: Work) -> dict[str, Any]:
    """Return micro-batches per second, the peak of a device, and the last step's mean loss."""
    with tempfile.TemporaryDirectory(prefix="atom-devices-") as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        of_each = [(rank, side, count, work, meeting) for rank in range(count)]
        with spawned(_live, of_each) as (_, pipes):
            seconds, losses, held = zip(*(pipe.recv() for pipe in pipes), strict=True)
    return {
        "side": side,
        "devices": count,
        "micro-batches/s": work.micro_batches / statistics.median(seconds[0]),
        "device MB": max(held) / 1e6,
        "loss": statistics.mean(loss for each in losses for loss in each),
    }


def _live(rank: int, side: str, count: int, work: Work, meeting: str, parent: Connection) -> None:
    """Main function of a process: send seconds of steps, losses, and the peak of memory."""
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if work.on_gpus else torch.device("cpu")
    if work.on_gpus:
        torch.cuda.set_device(device)
    backend = "nccl" if work.on_gpus else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=count)
    allocated = Allocated()
    step = SIDES[side](work, Process(side, rank, count, device, allocated))
    for _ in range(UNTIMED_STEPS):
        step()
    seconds, losses = zip(*_timed(step, work.steps), strict=True)
    held = torch.cuda.max_memory_allocated(device) if work.on_gpus else allocated.most_bytes
    parent.send((seconds, losses[-1], held))
    dist.destroy_process_group()


def _timed(step: Step, count: int) -> Iterator[tuple[float, Sequence[float]]]:
    for _ in range(count):
        dist.barrier()
        began = time.perf_counter()
        losses = step()
        dist.barrier()
        yield time.perf_counter() - began, losses
