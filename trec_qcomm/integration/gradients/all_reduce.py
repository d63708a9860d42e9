"""Gradients: DDP's all-reduce, coded. One object for each DDP, of TorchRec or of anybody else.

    gradients = DenseGradients(config.dense, seed=config.seed)
    gradients.register(ddp)

DDP hands over buckets while backward goes on; they are reduced one after the other, and DDP waits
for all of them at the end of backward: on CPU in a thread and on a process group of their own, on a
GPU on a stream of their own, launched by DDP's own thread in its process group (comm.transport).
Gradient accumulation (`no_sync`), static graphs and unused parameters work as without it: a
parameter that got no gradient anywhere sends nothing and keeps its residual.

Knows: DDP, rules of the config. Does not know: TorchRec, algorithms.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from trec_qcomm.codecs import Identity
from trec_qcomm.comm.dense.all_reduce import (
    ALGORITHMS,
    Algorithm,
    AllReduceOptions,
    Reduction,
    num_messages,
    sent_nbytes,
    sites,
)
from trec_qcomm.comm.dense.chunks import Chunks, Coding, ParameterShape
from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION, owed
from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.comm.streams import side_stream
from trec_qcomm.comm.transport import DeviceTransport, Transport
from trec_qcomm.config import Config, GradientRule, TableGradientRule
from trec_qcomm.core.checks import Checks
from trec_qcomm.core.codec import Codec, has_gpu_kernels
from trec_qcomm.core.counters import Traffic, summary
from trec_qcomm.integration.gradients.thresholds import (
    GlobalThresholds,
    GradientThresholds,
    LayerThresholds,
)

_AS_FAST = 1.01
State = dict[str, Any]
Bucket = Any  # torch.distributed.GradBucket, which has no types


class GradientAllReduce(ABC):
    """The all-reduce of the gradients of one DDP. Like QComm, a Stateful of DCP.

    Backward raises what goes wrong in an all-reduce: on CPU at its end, as DDP's RuntimeError whose
    text names it ("CorruptFrameError: frame from rank 3: ..."). On a GPU it is the error itself,
    but what frames held is found out later: a later bucket raises it, of that backward or the next,
    and where the program ends before, `state_dict` alone.
    """

    _sums_on_resize = False

    def __init__(
        self,
        rule: TableGradientRule,
        *,
        seed: int = 0,
        measure_error: bool = False,
        traffic: Traffic | None = None,
        is_exact: Callable[[], bool] = lambda: False,
    ) -> None:
        """Args: seed, measure_error: of Config.  traffic: counts what is sent.
        is_exact: whether to send float32 now; the same on all ranks.
        """
        self.rule = rule
        self._is_exact = is_exact
        self.traffic = Traffic("dense", ["all"]) if traffic is None else traffic
        self._seed, self._measure = seed, measure_error
        self._loaded: State = {}
        self._device, self._checks = torch.device("cpu"), Checks()
        self._parts: dict[nn.Parameter, list[ParameterShape]] = {}  # none before `register`

    def register(self, ddp: DistributedDataParallel) -> None:
        """Take over the all-reduce of a DDP. Collective.

        Raises: ValueError: parameters that are not float32, or neither on cpu nor on one GPU; a
            second DDP; on a GPU, a codec whose size depends on the data or a process group that is
            not NCCL's; ranks whose rules or parameters differ; state that was loaded and is not
            of this DDP. After an error it is as before, and may be registered with another DDP.
        """
        if self._parts:
            raise ValueError("gradients: there is a DDP already; make one of these for each")
        ignored = ddp.parameters_to_ignore
        named = [(n, p) for n, p in ddp.module.named_parameters() if n not in ignored]
        names = {p: name for name, p in named if p.requires_grad}
        device, pg = _device_of(names), ddp.process_group
        if device.type == "cuda":
            check_on_gpu(self.rule.codec, dist.get_backend_config(pg))
        parts = self._parts_of(ddp.module, names)
        parameters = [part for of in parts.values() for part in of]
        reduction = make_reduction(
            self.rule,
            parameters,
            pg.rank(),
            pg.size(),
            self.traffic,
            seed=self._seed,
            measure_error=self._measure,
        )
        self._load(reduction, device)
        group = _own_group(pg) if device.type == "cpu" else pg
        _check_same(group, repr((self.rule, self._seed, parameters)))
        self._transport = make_transport(group, device, self._checks)
        ddp.register_comm_hook(self, _hook)
        self._reduction, self._device, self._parts = reduction, device, parts

    @abstractmethod
    def _parts_of(
        self, module: nn.Module, names: Mapping[nn.Parameter, str]
    ) -> dict[nn.Parameter, list[ParameterShape]]:
        """What each of the module's parameters is to the all-reduce."""

    @abstractmethod
    def _rounds(self, parameters: Sequence[ParameterShape], values: Tensor) -> Rounds: ...

    def start(self, bucket: Bucket) -> Future[Tensor]:
        """Launch one bucket's all-reduce; a future of its mean."""
        values = bucket.buffer()
        parameters = [part for p in bucket.parameters() for part in self._parts[p]]
        rounds = self._rounds(parameters, values)
        return self._transport.start(rounds, values, self._add_wire_s)

    def _add_wire_s(self, seconds: float) -> None:
        self.traffic.wire_s += seconds

    def stats(self) -> dict[str, Any]:
        """What this rank sent since construction; see QComm.stats."""
        return summary([self.traffic])

    def state_dict(self) -> State:
        """{"rank0of4": {"num_calls", "residuals": {parameter: {site: [n]}}, "thresholds": ...}}:
        this rank's own, as DCP stores equal names of all ranks once. On CPU.

        Raises: CorruptFrameError: what frames in a GPU's memory held was wrong; no state is given
            out that was made with it.
        """
        if not self._parts:
            return self._loaded
        self._checks.raise_found(wait=True)
        own: State = {"num_calls": torch.tensor(self._reduction.num_calls)}
        if self._reduction.error_feedback is not None:
            with side_stream(self._device, use="gradients"):
                own["residuals"] = self._reduction.error_feedback.state_dict()
        if isinstance(self._reduction.tolerances, GradientThresholds):
            own["thresholds"] = self._reduction.tolerances.state_dict()
        return {_rank_key(self._reduction): own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, on any device, now or when a DDP is registered.

        The state of another world size must hold that of all its ranks, under their keys, where
        the rule says `on_resize: sum`; their residuals' sum is then spread evenly.
        Raises: ValueError: ranks are missing, or a parameter has another size.
        """
        self._loaded = _on_cpu(state)
        if self._parts:
            self._load(self._reduction, self._device)

    def _load(self, reduction: Reduction, device: torch.device) -> None:
        if not self._loaded:
            return
        own = self._loaded.get(_rank_key(reduction))
        one = next(iter(self._loaded.values()))
        reduction.num_calls = int((own or one)["num_calls"])
        if isinstance(reduction.tolerances, GradientThresholds) and own is not None:
            reduction.tolerances.load_state_dict(own.get("thresholds", {}))
        feedback = reduction.error_feedback
        if feedback is None:
            return
        with side_stream(device, use="gradients"):
            if own is not None:
                feedback.load_state_dict(own.get("residuals", {}))
            elif self._sums_on_resize:
                feedback.load_state_dict(_spread(self._loaded, reduction.world_size))


def ddp_comm_hook(config: Config) -> "DenseGradients":
    """The config's `dense` for a DDP that TorchRec knows nothing of.

        gradients = trec_qcomm.ddp_comm_hook(config)
        gradients.register(ddp)    # before the first backward, on all ranks

    Raises: ValueError: a config without `dense`.
    """
    if config.dense is None:
        raise ValueError(f"{config.source}: dense: missing")
    return DenseGradients(config.dense, seed=config.seed, measure_error=config.measure_error)


class DenseGradients(GradientAllReduce):
    """Of parameters that all ranks hold: blocks of adjacent values are rows."""

    def __init__(self, rule: GradientRule, **options: Any) -> None:
        """See GradientAllReduce."""
        super().__init__(rule, **options)
        self._rule = rule
        self._sums_on_resize = rule.on_resize == "sum"

    def _parts_of(
        self, module: nn.Module, names: Mapping[nn.Parameter, str]
    ) -> dict[nn.Parameter, list[ParameterShape]]:
        block = self._rule.block
        return {p: [ParameterShape(name, p.numel(), block)] for p, name in names.items()}

    def _rounds(self, parameters: Sequence[ParameterShape], values: Tensor) -> Rounds:
        return self._reduction.start(parameters, values, exact=self._is_exact())


def _hook(
    gradients: GradientAllReduce,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> Future[Tensor]:
    return gradients.start(bucket)


def _rank_key(of: Reduction) -> str:
    return f"rank{of.rank}of{of.world_size}"


def _on_cpu(state: Mapping[str, Any]) -> State:
    """The same, however deep. Waits for a GPU, in the caller's stream: theirs are the tensors."""
    found: State = {}
    for key, value in state.items():
        if isinstance(value, Mapping):
            value = _on_cpu(value)
        found[key] = value.cpu() if isinstance(value, Tensor) else value
    return found


def _spread(state: Mapping[str, Any], world_size: int) -> dict[str, dict[str, Tensor]]:
    """The residuals that each of so many ranks goes on with."""
    (of,) = {key.partition("of")[2] for key in state}
    missing = [f"rank{r}of{of}" for r in range(int(of)) if f"rank{r}of{of}" not in state]
    if missing:
        raise ValueError(
            f"state of {of} ranks, loaded by {world_size}: {', '.join(missing)} missing; "
            "load the state of all ranks, or set on_resize: reset"
        )
    total: dict[str, Tensor] = {}
    for own in state.values():
        for name, residuals in own.get("residuals", {}).items():
            total[name] = total.get(name, 0) + owed(residuals)
    return {name: {CONTRIBUTION: found / world_size} for name, found in total.items()}


def make_reduction(
    rule: TableGradientRule,
    parameters: Sequence[ParameterShape],
    rank: int,
    world_size: int,
    traffic: Traffic,
    *,
    seed: int = 0,
    measure_error: bool = False,
) -> Reduction:
    """What a rule says, for one rank. Args: parameters: of the whole model; see Reduction."""
    dense = rule if isinstance(rule, GradientRule) else None
    coding = Coding(
        codec=rule.codec, exact=Identity(), min_numel=dense.min_numel if dense is not None else 0
    )
    model = Chunks(tuple(parameters), world_size, coding)
    options = AllReduceOptions(
        coding=coding,
        algorithm=_algorithm(rule, model),
        error_feedback=dense is not None and dense.error_feedback,
        seed=seed,
        measure=measure_error,
    )
    tolerances = None
    if dense is not None and dense.refresh is not None and dense.codec.tolerance is not None:
        of = GlobalThresholds if dense.scope == "global" else LayerThresholds
        places = sites(options.algorithm, rank, world_size)
        tolerances = of(dense.refresh, dense.codec.tolerance, model, places)
    numels = {part.name: part.numel for part in parameters}
    return Reduction(options, rank, world_size, traffic, numels=numels, tolerances=tolerances)


def _algorithm(rule: TableGradientRule, model: Chunks) -> Algorithm:
    """That of the rule; `auto`: the one whose busiest rank has sent all first, by the link's model,
    with all parameters in one bucket. Of equally fast ones that with the fewest quantizations of
    a value; chunks of a block more or less do not count."""
    if rule.algorithm != "auto":
        return rule.algorithm
    world_size = model.num_chunks
    each = [model.part(range(c, c + 1)).placed.frame_nbytes[0] for c in range(world_size)]
    (whole,) = model.part(range(world_size)).placed.frame_nbytes

    def seconds(algorithm: Algorithm) -> float:
        most = max(sent_nbytes(algorithm, r, each, whole) for r in range(world_size))
        messages = num_messages(algorithm, world_size)
        return rule.link.transfer_s(num_messages=messages, nbytes=most)

    order: list[Algorithm] = ["two_shot", "recursive_doubling", "ring"]
    assert set(order) == set(ALGORITHMS)
    times = {algorithm: seconds(algorithm) for algorithm in order}
    limit = _AS_FAST * min(times.values())
    return next(algorithm for algorithm in order if times[algorithm] <= limit)


def _device_of(names: Mapping[nn.Parameter, str]) -> torch.device:
    """That of all parameters. Raises ValueError, see `GradientAllReduce.register`."""
    devices = {parameter.device: name for parameter, name in names.items()}
    for parameter, name in names.items():
        if parameter.dtype != torch.float32 or parameter.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"gradients of {name!r}: {parameter.dtype} on {parameter.device}; the "
                "all-reduce exists for float32 on cpu and cuda only"
            )
    if len(devices) > 1:
        places = ", ".join(f"{name!r} on {device}" for device, name in devices.items())
        raise ValueError(f"gradients of one DDP: on one device only, got {places}")
    return next(iter(devices), torch.device("cpu"))


def make_transport(
    pg: dist.ProcessGroup, device: torch.device, checks: Checks
) -> Transport | DeviceTransport:
    """That of messages in the memory of a device. Collective. Args: checks: see DeviceTransport."""
    return Transport(pg) if device.type == "cpu" else DeviceTransport(pg, device, checks)


def check_on_gpu(codec: Codec, backends: str) -> None:
    """Raise ValueError where gradients in a GPU's memory cannot be all-reduced so.

    Args: backends: of the process group, such as "cpu:gloo,cuda:nccl".
    """
    if not codec.fixed_size or not has_gpu_kernels(codec):
        raise ValueError(
            f"codec: {codec!r}: on cuda gradients are all-reduced with codecs of fixed size only: "
            "identity, cast, float6, rowwise, sign, topk with a density"
        )
    backend = dict(pair.split(":") for pair in backends.split(",")).get("cuda")
    if backend != "nccl":  # gloo does not send from a GPU's memory
        raise ValueError(
            f"gradients on cuda: the process group has {backend} there, and the all-reduce needs "
            'nccl: init_process_group("cpu:gloo,cuda:nccl"), or dense, data_parallel: left out'
        )


def _check_same(pg: dist.ProcessGroup, ours: str) -> None:
    """Raise ValueError on all ranks where one has another rule: gloo would end the process."""
    theirs: list[str] = [""] * pg.size()
    dist.all_gather_object(theirs, ours, group=pg)
    for rank, other in enumerate(theirs):
        if other != theirs[0]:
            raise ValueError(
                f"gradients: ranks 0 and {rank} of the group have different rules or parameters:\n"
                f"{theirs[0]}\n{other}"
            )


def _own_group(pg: dist.ProcessGroup) -> dist.ProcessGroup:
    """A gloo group of the same ranks and timeout."""
    ranks = dist.get_process_group_ranks(pg)
    everyone = len(ranks) == dist.get_world_size()
    timeout: timedelta = pg._get_backend(torch.device("cpu")).options._timeout
    group: dist.ProcessGroup = dist.new_group(
        ranks, timeout=timeout, backend="gloo", use_local_synchronization=not everyone
    )
    return group
