"""QComm: the one object a user holds. Everything else is reached through it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trec_qcomm.config import Config, load_config
from trec_qcomm.integration.compat import (
    DefaultDataParallelWrapper,
    ModuleSharder,
    QuantizedCommCodecs,
)
from trec_qcomm.integration.ddp import CountedDataParallelWrapper
from trec_qcomm.integration.registry_adapter import codecs_registry
from trec_qcomm.integration.session import Session
from trec_qcomm.integration.sharder import CodedEmbeddingBagCollectionSharder


class QComm:
    """Compressed communication for one model. Make one per rank, from the same config.

        qcomm = QComm.from_yaml("configs/int4.yaml")
        model = DistributedModelParallel(
            module=dlrm, device=device, plan=plan,
            sharders=qcomm.sharders(),
            data_parallel_wrapper=qcomm.data_parallel_wrapper(),
        )

    It is a Stateful of torch.distributed.checkpoint: save {"model": ..., "trec_qcomm": qcomm}.
    """

    def __init__(self, config: Config) -> None:
        if not isinstance(config, Config):
            raise ValueError(f"QComm: expected a Config, got {config!r}; see QComm.from_yaml")
        self.config = config
        self._session = Session(config)

    @classmethod
    def from_yaml(cls, path: str | Path) -> "QComm":
        """Read a file like those in configs/. Raises ValueError naming file, field, choices."""
        return cls(load_config(path))

    def sharders(
        self, *, fused_params: dict[str, Any] | None = None, **options: Any
    ) -> list[ModuleSharder[Any]]:
        """Sharders for DistributedModelParallel, in the place of TorchRec's.

        Args: fused_params: of the fused embedding optimizer, as for TorchRec's sharders.
            options: other arguments of TorchRec's EmbeddingBagCollectionSharder.
        """
        return [
            CodedEmbeddingBagCollectionSharder(self._session, fused_params=fused_params, **options)
        ]

    def data_parallel_wrapper(self, **options: Any) -> DefaultDataParallelWrapper:
        """Wrapper of the dense part. For now plain DDP in float32, with its traffic counted.

        Args: options: those of TorchRec's DefaultDataParallelWrapper.
        """
        return CountedDataParallelWrapper(self._session, **options)

    def codecs_registry(self) -> dict[str, QuantizedCommCodecs]:
        """The config as TorchRec's own registry, for stock sharders: cast codecs only.

        Raises: ValueError: any other codec, or codecs that differ by table, and why.
        """
        return codecs_registry(self.config)

    @contextmanager
    def bypass(self) -> Iterator[None]:
        """Exact communication inside the block, for evaluation. All ranks enter it together:
        a rank that does not expects frames of other sizes, and gloo ends the process.
        """
        before, self._session.exact = self._session.exact, True
        try:
            yield
        finally:
            self._session.exact = before

    def stats(self) -> dict[str, Any]:
        """What this rank sent to other ranks since construction or `reset_stats`.

        Returns: for each of embedding_forward, embedding_backward, dense, data_parallel, input:
            raw_nbytes, wire_nbytes (headers included), header_nbytes, num_calls, wire_s, encode_s
            and decode_s by codec and dim, and tables: {name: raw_nbytes, wire_nbytes,
            max_abs_err}. max_abs_err is None unless the config's measure_error is true. wire_s is
            the time blocked on the network, of all codecs together as they share one frame.
            dense and data_parallel count what a ring all-reduce sends.
        """
        return self._session.stats()

    def reset_stats(self) -> None:
        """Counters back to zero."""
        self._session.reset_stats()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to draw the same noise, keyed by name."""
        return self._session.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`. Raises ValueError: it is of another model."""
        self._session.load_state_dict(state_dict)
