"""compress_ddp: compressed gradients for a DDP outside TorchRec.

Knows: configs, DDP. Does not know: TorchRec, algorithms.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from trec_qcomm.config import Config, read_config
from trec_qcomm.core.counters import Traffic, kind_stats
from trec_qcomm.core.stats import Stats
from trec_qcomm.integration.checkpoint import Resumable, with_config, without_config
from trec_qcomm.integration.gradients.all_reduce import scale_of
from trec_qcomm.integration.gradients.dense import DenseGradients
from trec_qcomm.integration.warm_up import warm_up


def compress_ddp(
    ddp: DistributedDataParallel, config: Config | Mapping[str, Any] | Path | str
) -> "CompressedDDP":
    """Let a DDP all-reduce its gradients as a config's `dense` says. Collective.

        ddp = DistributedDataParallel(model)
        compressed = trec_qcomm.compress_ddp(ddp, "dense_float6")
        ...  # train as before
        print(compressed.summary())

    Call this once for a DDP, on all ranks, before the first backward. The config's settings for
    embeddings and DATA_PARALLEL tables are not used: they are for TorchRec's modules.

    Args:
        ddp: the wrapped model, float32, on CPU with gloo or on one GPU with NCCL.
        config: a Config, a mapping as in YAML, the path of a YAML file, or the name of a preset
            (`trec_qcomm.presets()`).

    Raises: ValueError: not a DDP; a config of another type, without `dense` or that cannot be read;
        an error of GradientAllReduce.register; ranks whose configs or parameters differ.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise ValueError(f"ddp: expected a DistributedDataParallel around the {type(ddp).__name__}")
    return CompressedDDP(ddp, read_config(config))


class CompressedDDP(Resumable):
    """Handle of a DDP whose gradients are compressed; `compress_ddp` makes it.

    It is a Stateful of torch.distributed.checkpoint: save {"model": ..., "trec_qcomm": compressed}.

    Attributes: scaler: scaler of the loss, as QComm.scaler.
    """

    def __init__(self, ddp: DistributedDataParallel, config: Config) -> None:
        """Take over the all-reduce of the DDP. Collective. Raises the errors of compress_ddp."""
        if config.dense is None:
            raise ValueError(f"{config.source}: dense: missing; add it, such as {{codec: float6}}")
        self.config = config
        self._used_config = Config(dense=config.dense, seed=config.seed, source=config.source)
        self._exact, self.scaler = False, None
        self._gradients = DenseGradients(
            config.dense,
            source=config.source,
            seed=config.seed,
            measure_error=config.measure_error,
            traffic=Traffic("dense", ["all"]),
            is_exact=lambda: self._exact,
            loss_scale=lambda: scale_of(self.scaler),
            check_replicas_every=config.check_replicas_every,
        )
        self._debugger = None if config.debug is None else config.debug.debugger_of_ddp(config)
        self._gradients.register(ddp)
        if self._debugger is not None:
            self._debugger.add_gradients("dense", self._gradients)
        if next(ddp.parameters()).device.type == "cpu":
            warm_up(Config(dense=config.dense, source=config.source))

    def __repr__(self) -> str:
        return f"CompressedDDP(dense={self.config.dense!r})"

    @contextmanager
    def bypass(self) -> Iterator[None]:
        """Send exact gradients inside the block. All ranks enter it together."""
        before, self._exact = self._exact, True
        try:
            yield
        finally:
            self._exact = before

    def stats(self) -> Stats:
        """Return what this rank sent since construction or `reset_stats`, in `stats().dense`.

        `stats().intra_dense` has what `hierarchical` sends inside a node.
        """
        traffic = self._gradients.traffic, self._gradients.intra_traffic
        sent, inside = (kind_stats([counted]) for counted in traffic)
        return Stats(dense=sent, intra_dense=inside, num_steps=self._gradients.num_steps)

    def summary(self) -> str:
        """Return one table of what this rank sends to others in a step, as text."""
        return str(self.stats())

    def debug_summary(self) -> str:
        """Return a text of what stands out in the measurements of the config's `debug`."""
        if self._debugger is None:
            return "debug: off"
        return str(self._debugger.summary())

    def reset_stats(self) -> None:
        """Set all counters to zero."""
        self._gradients.traffic.reset()
        self._gradients.intra_traffic.reset()
        self._gradients.num_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs to continue exactly.

        It holds this rank's residuals, thresholds and the number of calls, on CPU.

        Raises: CorruptFrameError: a frame in a GPU's memory was wrong; no state is returned.
        """
        return with_config(self._gradients.state_dict(), self._used_config)

    def load_state_dict(
        self, state_dict: dict[str, Any], *, allow_changed_config: bool = False
    ) -> None:
        """Continue from a `state_dict`.

        Args: allow_changed_config: whether the state may be of another `dense` or seed.
        Raises: ValueError: no such state, or the state of another model, world size or config.
        """
        state = without_config(
            state_dict, self._used_config, allow_changed_config=allow_changed_config
        )
        self._gradients.load_state_dict(state)
