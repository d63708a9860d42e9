"""Coded all-reduce of the gradients of one DDP, TorchRec's or any other.

    gradients = DenseGradients(config.dense, seed=config.seed)
    gradients.register(ddp)

DDP hands over buckets while backward goes on. They are reduced one after the other, and DDP waits
for all of them at the end of backward. On CPU a separate thread reduces them, on its own process
group, and small buckets wait for the next one (joint.py). On a GPU DDP's thread launches them on a
separate stream, in DDP's process group (comm.transport). Gradient accumulation (`no_sync`), static
graphs and unused parameters work as with plain DDP. A parameter that got no gradient on any rank
sends zeros and keeps its residual. Exact gradients are left to DDP's own all-reduce.

Knows: DDP, rules of the config. Does not know: TorchRec, algorithms.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from trec_qcomm.comm.dense.all_reduce import Reduction, ring_nbytes
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.dense.coder import GradientObserver
from trec_qcomm.comm.dense.error_feedback import owed, scaled
from trec_qcomm.comm.dense.replica_check import checked
from trec_qcomm.comm.peers import Peers, make_gloo_group
from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.comm.streams import side_stream
from trec_qcomm.config import AllReduceRule, GradientRule
from trec_qcomm.config.differences import flat_rule
from trec_qcomm.core.checks import DeferredChecks
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.counters import Traffic
from trec_qcomm.core.segments import int64_tensor
from trec_qcomm.integration.agreement import check_equal
from trec_qcomm.integration.checkpoint import by_rank_key, by_short_key, check_names, rank_key
from trec_qcomm.integration.gradients.joint import JointBuckets
from trec_qcomm.integration.gradients.placement import (
    agreed_ranks_per_node,
    check_launch_order,
    check_on_gpu,
    check_rows_on_gpu,
    device_of,
    make_transport,
)

State = dict[str, Any]
Bucket = Any  # torch.distributed.GradBucket, which has no types


class GradientAllReduce(ABC):
    """Coded all-reduce of the gradients of one DDP.

    It is a Stateful of torch.distributed.checkpoint (DCP), as QComm is.

    Backward raises the errors of an all-reduce. On CPU the end of backward raises DDP's
    RuntimeError. Its text contains the error ("CorruptFrameError: frame from rank 3: ..."), also
    the UnequalReplicasError of ranks that ended with other bits. On a GPU the error itself is
    raised. A wrong frame is found late there: a later bucket of this backward or the next one
    raises the error. After the last backward only `state_dict` raises it.
    """

    _name: ClassVar[str]  # what is all-reduced, in words

    def __init__(
        self,
        rules: AllReduceRule | Sequence[AllReduceRule],
        *,
        seed: int = 0,
        measure_error: bool = False,
        traffic: Traffic | None = None,
        is_exact: Callable[[], bool] = lambda: False,
        intra_traffic: Traffic | None = None,
        check_replicas_every: int = 1000,
        loss_scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """Prepare the all-reduce; `register` starts it.

        Args:
            rules: the config's `dense` or `data_parallel`.
            seed: seed of stochastic rounding.
            measure_error: whether to record the largest error of what this rank encodes.
            traffic: counters of the bytes that are sent.
            is_exact: function that returns whether DDP reduces the gradients now; equal on all
                ranks.
            intra_traffic: counters of the bytes sent inside a node, if there are two hops.
            check_replicas_every: number of steps between comparisons of results and weights over
                ranks (comm.dense.replica_check); 0: never.
            loss_scale: function that returns the present factor of the loss (QComm.scaler).
        """
        self.rules = (rules,) if isinstance(rules, AllReduceRule) else tuple(rules)
        self.traffic = Traffic("dense", ["all"]) if traffic is None else traffic
        self.intra_traffic = intra_traffic or Traffic("intra_dense", ["all"])
        self._ranks_per_node: int | None = None  # of the group, for `hierarchical`
        self._seed, self._measure_error = seed, measure_error
        self._is_exact, self._is_off = is_exact, False
        self._check_every, self._was_loaded = check_replicas_every, False
        self._loss_scale = loss_scale
        self._scale, self._scaled_step = 1.0, -1  # of what is kept, and where that was looked up
        self._observer: GradientObserver | None = None
        self.num_steps = 0  # backwards whose gradients were all-reduced
        self._loaded: State = {}
        self._device, self._checks = torch.device("cpu"), DeferredChecks()
        self._joint = JointBuckets()
        # Empty before `register`.
        self._shapes_by_parameter: dict[nn.Parameter, list[ParameterShape]] = {}

    def register(self, ddp: DistributedDataParallel) -> None:
        """Take over the all-reduce of a DDP. Collective.

        After an error this object is unchanged, and may be registered with another DDP.

        Raises: ValueError: one of these:
            - parameters that are not float32, or neither on the CPU nor on one GPU
            - a second DDP
            - nodes that differ in size
            - on a GPU, a codec whose size depends on the data, a row that is too long for a
              kernel, a process group without NCCL, or `own_group` without the order of launches
            - ranks whose rules or parameters differ
            - loaded state of another DDP
        """
        if self._shapes_by_parameter:
            raise ValueError("gradients: there is a DDP already; make an object for each DDP")
        device = device_of(_names_of(ddp))
        group = make_gloo_group(ddp.process_group) if device.type == "cpu" else ddp.process_group
        self._prepare(ddp, device, group)
        own_group = self.rules[0].own_group
        self._transport = make_transport(group, device, self._checks, own_group=own_group)
        ddp.register_comm_hook(self, _hook)
        self._ddp, self._device, self._group = ddp, device, group

    def _prepare(
        self, ddp: DistributedDataParallel, device: torch.device, group: dist.ProcessGroup
    ) -> None:
        """Make the reduction that the rules describe. Collective; arguments and errors: register.

        Args: group: the ranks of the DDP, for messages in the memory of the device.
        """
        pg = ddp.process_group
        shapes_by_parameter = self._shapes_of(ddp.module, _names_of(ddp))
        shapes = [shape for several in shapes_by_parameter.values() for shape in several]
        if device.type == "cuda":
            for field, codec in self._codecs():
                check_on_gpu(field, codec, dist.get_backend_config(pg))
            check_rows_on_gpu(shapes)
            if self.rules[0].own_group:
                check_launch_order(group)
        if self.rules[0].algorithm == "hierarchical":
            self._ranks_per_node = agreed_ranks_per_node(pg, group)
        reduction = self._make_reduction(shapes, pg.rank(), pg.size())
        self._load(reduction, shapes, device)
        # Compared, or gloo would end us.
        ours = {"seed": str(self._seed), "check_replicas_every": str(self._check_every)}
        for number, rule in enumerate(self.rules):
            ours |= flat_rule(rule, "rule" if len(self.rules) == 1 else f"rule[{number}]")
        ours |= {f"parameters[{n}]": repr(tuple(shape)) for n, shape in enumerate(shapes)}
        what = "gradients: ranks of the group have different rules or parameters"
        check_equal(group, ours, what)
        self._reduction, self._shapes_by_parameter = reduction, shapes_by_parameter
        reduction.observer, reduction.ranks = self._observer, Peers(group).ranks

    def _codecs(self) -> Iterator[tuple[str, Codec]]:
        """Yield the codecs of all rules, with the fields that hold them."""
        for rule in self.rules:
            yield "codec", rule.codec
            if isinstance(rule, GradientRule) and rule.intra is not None:
                yield "intra", rule.intra

    @property
    def shapes(self) -> list[ParameterShape]:
        """Shapes of all parameters, as the codec sees them; empty before `register`."""
        return [shape for group in self._shapes_by_parameter.values() for shape in group]

    def set_observer(self, observer: GradientObserver | None) -> None:
        """Let an observer see the values to send, from the next bucket on; None: no observer."""
        self._observer = observer
        if self._shapes_by_parameter:
            self._reduction.observer = observer

    @abstractmethod
    def _shapes_of(
        self, module: nn.Module, names: Mapping[nn.Parameter, str]
    ) -> dict[nn.Parameter, list[ParameterShape]]:
        """Return for each parameter the shapes that the codec sees in it, in order.

        Args: names: each parameter that DDP reduces, with its name.
        """

    @abstractmethod
    def _make_reduction(
        self, shapes: Sequence[ParameterShape], rank: int, world_size: int
    ) -> Reduction:
        """Return the reduction of this rank that the rule describes."""

    @abstractmethod
    def _rounds(self, shapes: Sequence[ParameterShape], values: Tensor, is_last: bool) -> Rounds:
        """Return the rounds in which one bucket's values become the mean over ranks.

        Args: is_last: whether it is the last bucket of its step.
        """

    def start(self, bucket: Bucket) -> Future[Tensor]:
        """Launch one bucket's all-reduce, now or with the next one's, and return a future of its
        mean."""
        name = f"all-reduce of {self._name}, step {self._reduction.num_steps}"
        is_last = bucket.is_last()
        self.num_steps += is_last
        values = bucket.buffer()
        if bucket.index() == 0:
            self._joint.clear()  # of a backward that failed
        if not self._joint.is_waiting and (self._is_exact() or self._is_off):
            self._reduction.num_steps += is_last
            nbytes = int64_tensor([ring_nbytes(len(values), self._reduction.world_size)])
            self.traffic.add_bytes(int64_tensor([0]), nbytes, nbytes, 0)
            return allreduce_hook(self._ddp.process_group, bucket)
        parameters = bucket.parameters()
        if not is_last and self._joint.is_small(values):
            return self._joint.keep(parameters, values)
        parameters, values = self._joint.join(parameters, values)
        shapes = [shape for p in parameters for shape in self._shapes_by_parameter[p]]
        is_checked = self._check_every and (
            self._was_loaded or (self._reduction.num_steps + 1) % self._check_every == 0
        )
        if self._scaled_step != self._reduction.num_steps:
            self._follow_scale()
        rounds = self._rounds(shapes, values, is_last)
        if is_checked:
            place = self._reduction.rank, self._reduction.ranks
            weights = [parameter.detach() for parameter in parameters]
            rounds = checked(rounds, shapes, values, weights, *place, name)
            self._was_loaded = self._was_loaded and not is_last
        rounds = self._joint.apart(rounds)
        return self._joint.end(self._transport.start(rounds, values, self._add_wire_s, name))

    def _follow_scale(self) -> None:
        """Bring what was kept back to the scale that the loss has in this step."""
        before, self._scale = self._scale, self._loss_scale()
        self._scaled_step = self._reduction.num_steps
        if self._scale != before:
            with side_stream(self._device, use="gradients"):
                self._reduction.rescale(self._scale / before)

    def _add_wire_s(self, seconds: float) -> None:
        self.traffic.wire_s += seconds

    def state_dict(self) -> State:
        """Return this rank's state: residuals, thresholds and the number of steps, on CPU.

        The state is {"rank0of4": {"num_steps", "residuals": {parameter: {site: [n]}}, "thresholds":
        ..., "low_rank": {parameter: [r, m]}}}. "low_rank" has the last factors, from which the next
        ones begin. The key names the rank because DCP stores equal names of all ranks once.
        Residuals are saved for a loss that no scaler has multiplied.

        Raises: CorruptFrameError: a frame in a GPU's memory was wrong. No state is returned that
            was made with such a frame.
        """
        if not self._shapes_by_parameter:
            return by_rank_key(self._loaded)
        self._checks.raise_found(wait=True)
        state: State = {"num_steps": torch.tensor(self._reduction.num_steps)}
        with side_stream(self._device, use="gradients"):
            if self._reduction.error_feedback is not None:
                state["residuals"] = self._reduction.error_feedback.state_dict()
            if self._reduction.matrices is not None:
                state.setdefault("residuals", {}).update(self._reduction.matrices.residuals())
                state["low_rank"] = self._reduction.matrices.right_factors()
            for name, sites in state.get("residuals", {}).items():
                state["residuals"][name] = scaled(sites, 1 / self._scale)
        if self._reduction.tolerances is not None:
            state["thresholds"] = self._reduction.tolerances.state_dict()
        return {rank_key(self._reduction.rank, self._reduction.world_size): state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, on any device, now or when a DDP is registered.

        With `on_resize: sum`, the state of another world size must hold the state of all its ranks,
        under their keys. The sum of their residuals is then dealt out evenly.

        Raises: ValueError: no such state, ranks are missing, or a parameter has another size.
        """
        check_names(state, "state of gradients")
        loaded = by_short_key(_on_cpu(state))
        for key, of_rank in loaded.items():
            names = ("num_steps", "residuals", "thresholds", "low_rank")
            check_names(of_rank, f"state of gradients: {key}", names, needed="num_steps")
        self._loaded = loaded
        if self._shapes_by_parameter:
            self._load(self._reduction, self.shapes, self._device)

    def _keeps_residual(self, shape: ParameterShape, *, resized: bool) -> bool:
        """Return whether what was kept back of a parameter is used by a run that goes on.

        Args: resized: whether the run before had another number of ranks.
        """
        return False

    def _load(
        self, reduction: Reduction, shapes: Sequence[ParameterShape], device: torch.device
    ) -> None:
        if not self._loaded:
            return
        self._was_loaded, self._scale, self._scaled_step = True, 1.0, -1
        key = f"rank{reduction.rank}of{reduction.world_size}"
        state = self._loaded.get(key)  # None after a change of the world size
        any_state = next(iter(self._loaded.values()))
        reduction.num_steps = int((state or any_state)["num_steps"])
        reduction.num_calls = reduction.num_steps  # ranks that loaded other steps are told apart
        if reduction.tolerances is not None and state is not None:
            reduction.tolerances.load_state_dict(state.get("thresholds", {}))
        with side_stream(device, use="gradients"):
            residuals = self._loaded_residuals(reduction, shapes, state)
            if reduction.matrices is not None:
                names = reduction.matrices.by_name.keys() & residuals.keys()
                flat = {name: owed(residuals.pop(name)) for name in names}
                reduction.matrices.load(flat, (state or any_state).get("low_rank", {}))
            if reduction.error_feedback is not None:
                reduction.error_feedback.load_state_dict(residuals)

    def _loaded_residuals(
        self, reduction: Reduction, shapes: Sequence[ParameterShape], state: State | None
    ) -> dict[str, dict[str, Tensor]]:
        """Return the residuals of this rank's state, or a share of all ranks' where it has none.

        A share is also what a rank gets that sends other values than before, because nodes or the
        algorithm changed.
        """
        residuals = {} if state is None else state.get("residuals", {})
        resized = state is None or not all(map(reduction.takes, residuals, residuals.values()))
        used = {s.name: self._keeps_residual(s, resized=resized) for s in shapes}
        if resized and any(used.values()):
            shape_of = {shape.name: shape for shape in shapes}
            residuals = {
                name: reduction.dealt(shape_of[name], total)
                for name, total in _owed_by_all(self._loaded, reduction.world_size).items()
                if name in shape_of
            }
        return {name: sites for name, sites in residuals.items() if used.get(name, True)}


def scale_of(scaler: Any) -> float:
    """Return the present factor of a torch.amp.GradScaler; 1 if the scaler is None."""
    return 1.0 if scaler is None else float(scaler.get_scale())


def _names_of(ddp: DistributedDataParallel) -> dict[nn.Parameter, str]:
    """Return each parameter that DDP reduces, with its name."""
    ignored = ddp.parameters_to_ignore
    named = [(n, p) for n, p in ddp.module.named_parameters() if n not in ignored]
    return {p: name for name, p in named if p.requires_grad}


def _hook(
    gradients: GradientAllReduce,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> Future[Tensor]:
    return gradients.start(bucket)


def _on_cpu(state: Mapping[str, Any]) -> State:
    """Return the state with its tensors on CPU, however deep they lie.

    It waits for a GPU, in the caller's stream, in which the tensors were made.
    """
    copied: State = {}
    for key, value in state.items():
        if isinstance(value, Mapping):
            value = _on_cpu(value)
        copied[key] = value.cpu() if isinstance(value, Tensor) else value
    return copied


def _owed_by_all(states: Mapping[str, Any], world_size: int) -> dict[str, Tensor]:
    """Return by parameter the sum of the residuals of all ranks.

    Args:
        states: states of all ranks, under their keys.
        world_size: number of ranks that go on.

    Raises: ValueError: the state of a rank is missing.
    """
    (num_saved,) = {key.partition("of")[2] for key in states}
    keys = [f"rank{rank}of{num_saved}" for rank in range(int(num_saved))]
    missing = [key for key in keys if key not in states]
    if missing:
        raise ValueError(
            f"state of {num_saved} ranks, loaded by {world_size}: {', '.join(missing)} missing; "
            "load the state of all ranks, or set on_resize: reset"
        )
    total: dict[str, Tensor] = {}
    for state in states.values():
        for name, residuals in state.get("residuals", {}).items():
            total[name] = total.get(name, 0) + owed(residuals)
    return total
