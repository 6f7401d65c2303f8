"""Programs of an offloaded module, one for each form of a batch.

A program has fixed shapes, so a batch of another form (a smaller last batch, for example) gets a
program of its own, with the same cut. It is traced from a copy of the module without weights.
"""

import copy
import weakref
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from atom.base.errors import ModelError
from atom.graph.batches import Entries, Form, Packing, Whole
from atom.graph.ir import Program
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.graph.tracing.guards import constants_of, fake_parameters, refuse_untraceable_parts
from atom.graph.tracing.refusals import Refusal
from atom.optim.optimizer import Optimizer
from atom.plan.choice import Choice
from atom.plan.choosing import Question, choose
from atom.plan.devices import free_host_bytes, has_kernels, usable_device_bytes
from atom.plan.footprint import Footprint, trained_element_bytes
from atom.plan.profiling import profile_or_guess
from atom.swap.device import Device
from atom.training.replica.device_engines import MAX_MICRO_BATCHES_PER_PASS
from atom.training.run_optimizer import ReplicaTerms


class Programs:
    """Programs of one module by form of the batch. A new form is traced when it first occurs."""

    def __init__(self, whole: Whole, example: Entries) -> None:
        """Trace the example.

        Args:
            whole: the module and its loss. Their parameters are not used afterwards.
            example: the batch for which the programs' cut is chosen.

        Raises:
            ModelError: the module cannot be traced.
        """
        refuse_untraceable_parts(whole)
        without_values = {
            id(each): nn.Parameter(torch.empty_like(each, device="meta"), each.requires_grad)
            for each in whole.parameters()
            if not is_lazy(each)
        }
        model, loss = whole.model, whole.loss
        self.model = copy.deepcopy(model, without_values)
        """Copy of the module with buffers, but without values of parameters."""
        self._loss = copy.deepcopy(loss, without_values) if isinstance(loss, nn.Module) else loss
        if not model.training:
            self.model.train()
        if getattr(getattr(model, "config", None), "use_cache", False):
            self.model.config.use_cache = False  # type: ignore[union-attr]
        self.example = example
        self._given = [weakref.ref(each) for each in (model, loss) if isinstance(each, nn.Module)]
        self._constants, self.closed = dict[str, str](), False
        given = {each.untyped_storage()._cdata for each in whole.parameters()}
        with fake_parameters(whole, FakeTensorMode()):  # a hook may read the given module
            self.graph = self._traced(example)
        self.require_usable()
        for each in self.graph.constants.values():
            if each.tensor.untyped_storage()._cdata in given:
                raise Refusal.OUTSIDE_MODULES.error(name=each.name)
        self._training = dict[Form, Program]()
        self._evaluation = dict[Form, tuple[Program, Packing]]()

    def cut(
        self, optimizer: Optimizer, devices: Sequence[Device], limit_bytes: int | None
    ) -> tuple[Choice, Program]:
        """Choose how to cut the model for these devices, and return the example's program.

        Raises:
            DeviceError: the model does not fit.
        """
        graph, each = self.graph, [device.torch_device for device in devices]
        profile = profile_or_guess(graph, each[0], lambda note: None, lambda done, total: None)
        terms = ReplicaTerms(graph.layout, graph.parameter_dtype, optimizer)
        left_bytes = Footprint.of(terms, free_host_bytes(None)).host.left_bytes
        device_bytes = limit_bytes or usable_device_bytes(each, left_bytes)
        sizes = device_bytes, MAX_MICRO_BATCHES_PER_PASS, left_bytes
        on_device = len(each) == 1 and has_kernels(each[0], lambda note: None)
        trained = trained_element_bytes(terms) * on_device
        limits = {"devices": len(each), "trained_element_bytes": trained}
        self._choice = choose(Question.of(graph, profile, *sizes, **limits))
        first = replace(self._choice.program(graph), weight=1)
        self._training[self.example.form] = first
        return self._choice, first

    def require_usable(self, with_loss: bool = True) -> None:
        """Require that the programs still compute what the user's code says.

        The programs of all forms were traced with the same Python values. To trace again after a
        change would also be right, but would take seconds in each step of a loop that changes one.

        Args:
            with_loss: the loss function is used too.

        Raises:
            RuntimeError: the model is closed.
            ModelError: names a Python value that has changed.
        """
        if self.closed:
            raise RuntimeError("the offloaded model is closed: use it within its `with` block")
        modules = [each for given in self._given if (each := given()) is not None]
        for where, now in constants_of(modules, self._loss if with_loss else None).items():
            if (traced := self._constants.setdefault(where, now)) != now:
                what = f"which was {traced} when the program was traced and is {now} now"
                raise ModelError(f"{where}, {what}", "pass it as a tensor, an entry of the batch")

    def training(self, entries: Entries) -> Program:
        """Return the training program for batches of this form.

        Raises:
            ValueError: the batch has another structure than the example.
            ModelError: the module cannot be traced with such a batch.
        """
        if entries.structure != self.example.structure:
            unlike = f"unlike the example: {self.example.shapes}"
            raise ValueError(f"the batch is {entries.shapes}, {unlike}")
        if entries.form not in self._training:
            self._training[entries.form] = self._alike(self._traced(entries))
        return self._training[entries.form]

    def evaluation(self, entries: Entries) -> tuple[Program, Packing]:
        """Return the program of the module's output in evaluation mode, and the output's packing.

        A batch with another structure than the example has inputs only.

        Raises:
            ModelError: the module cannot be traced with such a batch.
        """
        if entries.form not in self._evaluation:
            packing = Packing()
            loss = self._loss if entries.structure == self.example.structure else None
            module = Whole(self.model, loss, entries, packing)
            graph = trace(module, entries.tensors, training=False, gives_loss=False)
            self._evaluation[entries.form] = self._alike(graph), packing
        return self._evaluation[entries.form]

    def _traced(self, entries: Entries) -> Graph:
        return trace(Whole(self.model, self._loss, entries), entries.tensors)

    def _alike(self, graph: Graph) -> Program:
        """Return the program of another graph of the module, with the layout of the first."""
        if unknown := graph.layout.by_name.keys() - self.graph.layout.by_name.keys():
            what = f"the output uses {min(unknown)}, but the loss of the example does not"
            raise ModelError(what, "return only values that depend on trained parameters")
        graph = replace(graph, layout=self.graph.layout)
        return replace(self._choice.program_alike(graph, self.graph), weight=1)
