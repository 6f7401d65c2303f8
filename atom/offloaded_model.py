"""Training of a PyTorch module that is larger than the GPU, in one process, without a swarm.

The module is traced and cut into sub-models. Weights, gradients and optimizer state stay in host
memory, and the sub-models stream through the device. The code is shared with the swarm's peers
(`graph`, `plan`, `swap`, `optim`, `training.replica`), so its guarantees
hold here too: a step gives the same bits as plain PyTorch where the device rounds alike
(docs/devices.md). docs/offload.md is the guide for users.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from atom.base.errors import DeviceError
from atom.base.units import parse_bytes
from atom.graph.batches import Batch, Entries, Loss, Whole, batches_of, runs_of
from atom.offloaded_programs import Programs
from atom.optim.adamw import AdamW
from atom.optim.groups import Group, ParameterGroups, parameter_groups, require_rate
from atom.optim.optimizer import Optimizer
from atom.optim.rate import RateSettings
from atom.optim.rate import learning_rate as rate_at
from atom.plan.devices import open_devices
from atom.swap.device import Device
from atom.swap.voided import Cause, PassVoided
from atom.training.replica.replica import Replica, ReplicaSettings

_LESS_MEMORY = "raise gpu_memory, use a smaller batch, or convert the module with .bfloat16()"


class OffloadedModel(AbstractContextManager["OffloadedModel"]):
    """Module whose weights and optimizer state stay in host memory and stream through a device.

    Create it with `offload`. Use it from one thread at a time, as a context manager, or call
    `close`.
    """

    def __init__(
        self,
        replica: Replica,
        programs: Programs,
        groups: ParameterGroups,
        schedule: RateSettings | None,
        accumulate: int,
        names: Mapping[str, str],
        constants: Mapping[str, Tensor],
        devices: Sequence[Device],
    ) -> None:
        """Wrap a replica that already holds the module's values.

        Args:
            replica: the replica that trains the module.
            programs: programs of the replica, by form of the batch.
            groups: the replica's optimizer.
            schedule: learning rate over steps; None: the groups' rates change only by hand.
            accumulate: number of calls of `step` for one optimizer step.
            names: name of each parameter that the forward uses → its name in the replica. Tied
                parameters share one name in the replica.
            constants: other entries of the module's `state_dict`: buffers and unused parameters.
            devices: the devices of the replica, which `close` releases.
        """
        self._replica, self._programs, self._groups = replica, programs, groups
        self._schedule, self._accumulate, self._devices = schedule, accumulate, devices
        self._names, self._constants = names, constants
        self._given = 0
        """Number of calls of `step` since the last optimizer step."""
        self._first_rates = [float(group["lr"]) for group in groups.groups]
        self._follow_schedule()

    @property
    def steps(self) -> int:
        """Number of optimizer steps taken."""
        return self._replica.step_count

    @property
    def micro_batches(self) -> int:
        """Maximum number of batches per pass through the devices; a step may take more."""
        return self._replica.micro_batches

    @property
    def param_groups(self) -> list[Group]:
        """Parameter groups, as `torch.optim.Optimizer.param_groups`.

        You may change "lr": the next optimizer step uses the new value.
        """
        return self._groups.groups

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step, of the first parameter group.

        Setting the property sets the rate of all groups and ends the schedule, if there is one.
        """
        return float(self.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        require_rate(rate)
        self._schedule = None
        for group in self.param_groups:
            group["lr"] = rate

    def step(self, batch: Batch | Sequence[Batch], accumulate: int | None = None) -> float:
        """Train on a batch: forward, backward and, unless gradients accumulate, an optimizer step.

        The gradient is the mean over all batches since the last optimizer step. As in a loop of
        plain PyTorch that divides each loss by the number of batches, each batch counts the same,
        whatever its size. The optimizer step runs on the host and overlaps with the next call.

        Args:
            batch: a batch with the structure of the example, or a list of such batches, for which
                the weights pass the device together. A larger batch may need too much memory.
            accumulate: take the optimizer step if this is at least the given number of calls since
                the last one; None: the number that was given to `offload`.

        Returns: the mean loss of the batches of this call, before the step.

        Raises: PassVoided if a loss or gradient is not finite, or memory ran out; the weights are
            then as before the call, and accumulated gradients are dropped. ValueError if the
            batch does not fit the example. ModelError if a number that the module or the loss
            function reads from elsewhere has changed. RuntimeError within `torch.autocast`.
        """
        self._programs.require_usable()
        replica, losses = self._replica, list[float]()
        batches, _ = batches_of(batch, self._programs.example)
        least = self._accumulate if accumulate is None else accumulate
        if least < 1:
            raise ValueError(f"accumulate: {least} is below 1")
        given, self._given = self._given + 1, 0  # an error drops what has accumulated
        if given == 1:
            replica.reset_gradients()
        with _plain_pytorch():
            groups = [
                (self._programs.training(some[0]), some)
                for some in runs_of(batches, replica.micro_batches)
            ]
            for number, (program, some) in enumerate(groups, start=1):
                replica.engines.use(program)
                last = number == len(groups) and given >= least
                replica.run_pass([each.tensors for each in some], last=last)
                losses += replica.losses
        if given < least:
            self._given = given
        else:
            replica.finish_step()
            self._groups.settle()
            replica.begin_own_step()
            self._follow_schedule()
        return sum(losses) / len(losses)

    def evaluate(self, batch: Batch | Sequence[Batch]) -> Any:
        """Return the module's output for a batch in evaluation mode, on the CPU.

        Args:
            batch: a batch like the example, whose targets are not used, or the module's inputs
                alone; or a list of batches like the example. Any size is allowed.

        Returns: what the module's forward returns, or a list of that for a list of batches.

        Raises: as `step`.
        """
        self._programs.require_usable(with_loss=False)
        batches, several = batches_of(batch, self._programs.example)
        outputs = list[Any]()
        with _plain_pytorch():
            for some in runs_of(batches, self._replica.micro_batches):
                program, packing = self._programs.evaluation(some[0])
                self._replica.engines.use(program)
                found = self._replica.outputs([each.tensors for each in some], lambda: False)
                outputs += map(packing.unpacked, found)
        return outputs if several else outputs[0]

    def _follow_schedule(self) -> None:
        """Set the groups' rates for the next step."""
        if self._schedule is None:
            return
        peak, now = self._schedule.learning_rate, rate_at(self._schedule, self.steps + 1)
        for group, first in zip(self.param_groups, self._first_rates, strict=True):
            group["lr"] = now if first == peak else first * (now / peak)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all that `load_state_dict` needs to continue with the same bits.

        The random state of dropout and accumulated gradients are not included.

        Returns: a dict. "model" has the entries of the module's own `state_dict`, with parameters
            in float32. "state" has weights and optimizer state as flat arenas [elements], and the
            parameters without gradient; "layout" has the parameters in them. "steps" is the number
            of steps taken, "lr" the learning rate of each parameter group.
        """
        weights = self._replica.export_parameters()
        model = {**self._constants, **{name: weights[own] for name, own in self._names.items()}}
        arenas = {**self._replica.state_arenas(), **self._replica.frozen}
        return {
            "model": {name: value.clone() for name, value in model.items()},
            "state": {name: arena.clone() for name, arena in arenas.items()},
            "layout": self._layout(),
            "optimizer": self._groups.kinds,
            "steps": self.steps,
            "lr": [float(group["lr"]) for group in self.param_groups],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned.

        Raises: KeyError if an entry is missing; RuntimeError if a name or a shape differs, as in
            PyTorch; ValueError if the optimizer or a buffer differs. Nothing has changed then.
        """
        if missing := {"model", "state", "layout", "optimizer", "steps", "lr"} - state.keys():
            what = "load the state_dict of a plain module before offload"
            raise KeyError(f"the state has no {', '.join(sorted(missing))}: {what}")
        given, groups = state["model"], self.param_groups
        copy.deepcopy(self._programs.model).load_state_dict(given, assign=True)
        for name, buffer in self._programs.model.named_buffers(remove_duplicate=False):
            if name in given and not torch.equal(buffer, given[name]):
                raise ValueError(f"buffer {name} has other values: load it before offload")
        if state["layout"] != self._layout():
            raise ValueError("the forward uses the parameters in another order")
        if self._groups.kinds != state["optimizer"] or len(state["lr"]) != len(groups):
            raise ValueError("the state is of another optimizer or of other parameter groups")
        self._replica.load_state(state["state"], state["steps"])
        for name, value in self._constants.items():
            value.copy_(given[name])
        for group, rate in zip(groups, state["lr"], strict=True):
            group["lr"] = rate
        self._given = 0
        self._follow_schedule()

    def _layout(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(spec.name, spec.shape) for spec in self._programs.graph.layout.specs]

    def close(self) -> None:
        """Wait for the current step, then release the devices' memory.

        The cuBLAS workspaces of the whole process are released too, so no other computation may run
        on the devices during this call.
        """
        self._programs.closed = True
        self._replica.finish_step()
        for device in self._devices:
            device.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def offload(
    model: nn.Module,
    loss: Loss | None,
    example: Batch,
    *,
    gpu_memory: str | None = None,
    optimizer: Optimizer | None = None,
    params: Iterable[Any] | None = None,
    learning_rate: float | RateSettings = 1e-3,
    clip_norm: float | None = None,
    accumulate: int = 1,
    device: str | torch.device | Sequence[str | torch.device] = "auto",
    seed: int = 0,
) -> OffloadedModel:
    """Prepare a module for training on a device that may be smaller than the module.

    Args:
        model: any module that `torch.export` can trace (docs/compiler.md). Its values are copied to
            host memory; the module itself is neither changed nor used afterwards and may be
            deleted. Submodules that are in evaluation mode stay there, unless all of it is.
        loss: function of the module's output and the targets, the last entry of a batch; returns
            the mean over the batch, a scalar. None: the module returns its loss, alone, as `.loss`
            or first, as models of `transformers` do.
        example: a batch: (inputs, targets), (inputs, …, targets), or a dictionary, whose entries
            are arguments of forward by name. Device memory is planned for it: give the largest.
        gpu_memory: most memory to take of each device, such as "8 GiB"; None: nine tenths of the
            free memory. Several open models share one limit, the sum of theirs. On a CPU it bounds
            the memory of the computation.
        optimizer: `atom.AdamW(...)`, `AdamW8Bit`, `Muon`, `SGD`, `Lion`, or another
            `atom.optim.optimizer.Optimizer`; None: AdamW.
        params: parameter groups, as `torch.optim` takes them; None: one group of all parameters, in
            which biases and norms do not decay.
        learning_rate: a constant, or a schedule over steps. A group's "lr" replaces its highest
            rate.
        clip_norm: largest global norm of the gradient, above which it is clipped; None or 0:
            no clipping.
        accumulate: number of calls of `step` for one optimizer step.
        device: "auto", "cpu", "cuda", "cuda:N", "all" for all GPUs, or a list of devices. Several
            devices share the batches of one call of `step`.
        seed: seed of dropout.

    Returns: the offloaded model, ready for `step`; close it after use.

    Raises: ModelError naming the operation or buffer that cannot be traced; DeviceError if the
        device is missing or too small; ValueError if a number is out of range, or a parameter is in
        no group or in two; TypeError for an unknown optimizer or option.
    """
    if clip_norm is not None and not clip_norm >= 0:
        raise ValueError(f"clip_norm: {clip_norm} is below 0")
    schedule = learning_rate if isinstance(learning_rate, RateSettings) else None
    rate: Any = learning_rate if schedule is None else schedule.learning_rate
    use = [str(each) for each in (device if isinstance(device, list | tuple) else [device])]
    for each in set(use) - {"auto", "all"}:
        torch.device(each)  # it raises PyTorch's error for an unknown name
    limit_bytes = None if gpu_memory is None else parse_bytes(gpu_memory)
    with _plain_pytorch(), ExitStack() as on_failure:
        batch = Entries.of(example)
        whole = Whole(model, loss, batch)
        programs, values = Programs(whole, batch), dict(whole.named_parameters())
        graph = programs.graph
        first: dict[Tensor, str] = {value: name for name, value in values.items()}
        names = {n: first[value] for n, value in model.named_parameters(remove_duplicate=False)}
        trained = dict.fromkeys(spec.name for spec in graph.layout.trained)
        groups = parameter_groups(optimizer or AdamW(), params, rate, first, trained)
        opened = open_devices(use, graph.parameter_dtype, limit_bytes)
        for each_device in opened:
            on_failure.callback(each_device.close)
        choice, program = programs.cut(groups, opened, limit_bytes)
        settings = ReplicaSettings(
            rate=RateSettings(0.0),
            optimizer=groups,
            clip_norm=clip_norm or None,
            precision=graph.parameter_dtype,
            arrangement=choice.arrangement,
            micro_batches=choice.micro_batches,
            dropout_seed=seed,
        )
        replica = Replica(program, None, settings, opened[0], extra_devices=opened[1:])
        for fill in (replica.fill_frozen, replica.initialise):
            fill(lambda name, _: values[name].detach().to("cpu", torch.float32))
        on_failure.pop_all()
    used = {name: own for name, own in names.items() if own in graph.layout.by_name}
    constants = {
        n: v.detach().cpu().clone() for n, v in model.state_dict().items() if n not in used
    }
    return OffloadedModel(replica, programs, groups, schedule, accumulate, used, constants, opened)


@contextmanager
def _plain_pytorch() -> Iterator[None]:
    """Wrap a computation: refuse autocast, leave inference mode, and give hints for this module."""
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            what = "torch.autocast around an offloaded model has no effect"
            raise RuntimeError(f"{what}: enter it in the module's forward, or use .bfloat16()")
    try:
        with torch.inference_mode(False):
            yield
    except DeviceError as problem:
        hint = _LESS_MEMORY if "memory" in problem.message else 'check the driver, or device="cpu"'
        raise DeviceError(problem.message.removeprefix("model."), hint) from problem
    except PassVoided as void:
        words = f"{void.cause.replace('-', ' ')}: {void.detail.replace('micro-', '')}"
        hint = _LESS_MEMORY if void.cause is Cause.MEMORY else void.hint
        said = f"{words}; the weights are unchanged"
        raise PassVoided(void.cause, void.detail, void.sequences_lost, hint, said) from void
