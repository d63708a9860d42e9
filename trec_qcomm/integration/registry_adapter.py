"""CastCommCodec: our cast codecs in TorchRec's own registry, for users of stock sharders.

TorchRec encodes a flat buffer in which tables are interleaved and its row-wise shardings add
encoded values, so only a cast means the same there. Unlike TorchRec's own, BF16 is BF16 on gloo.
"""

import torch
from torch import Tensor

from trec_qcomm.codecs import Cast, Identity
from trec_qcomm.config import Config
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.errors import UnencodableError
from trec_qcomm.integration.compat import CommOp, QuantizedCommCodec, QuantizedCommCodecs

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class CastCommCodec(QuantizedCommCodec[None]):
    """Codec `cast` or `identity` behind TorchRec's interface."""

    def __init__(self, codec: Cast | Identity) -> None:
        self._dtype = _DTYPES[codec.dtype] if isinstance(codec, Cast) else torch.float32
        self._raises = isinstance(codec, Cast) and codec.overflow == "raise"

    def encode(self, input_tensor: Tensor, ctx: None = None) -> Tensor:
        """Convert float32 to the dtype. Raises UnencodableError: an overflow, where refused."""
        encoded = input_tensor.to(self._dtype)
        if self._raises and bool((encoded.isinf() & input_tensor.isfinite()).any()):
            raise UnencodableError(f"a value beyond the range of {self._dtype}", segment=0)
        return encoded

    def decode(self, input_grad: Tensor, ctx: None = None) -> Tensor:
        """Convert to float32."""
        return input_grad.to(torch.float32)

    @property
    def quantized_dtype(self) -> torch.dtype:
        """Dtype of the values that are sent."""
        return self._dtype

    def calc_quantized_size(self, input_len: int, ctx: None = None) -> int:
        """Return the number of encoded elements: one for each element."""
        return input_len

    def create_context(self) -> None:
        """Return None: a cast needs no context."""
        return None

    def padded_size(
        self, input_tensor: Tensor, dim_per_rank: list[int], my_rank: int, qcomm_ctx: None
    ) -> tuple[int, int]:
        """Return the length of a row and its padding, which is 0."""
        return input_tensor.shape[-1], 0


def codecs_registry(config: Config) -> dict[str, QuantizedCommCodecs]:
    """Return TorchRec's registry for all its collectives.

    Raises: ValueError: a codec that is not `cast` or `identity`, or that differs by table;
        unique_bags, which stock sharders do not have.
    """
    for number, rule in enumerate(config.embedding):
        if rule.unique_bags is not False:
            raise ValueError(
                f"{config.source}: embedding[{number}].unique_bags: {rule.unique_bags!r}; allowed "
                "in TorchRec's own registry: false. Use qcomm.sharders()."
            )
    codecs = QuantizedCommCodecs(
        forward=CastCommCodec(_one_cast(config, "forward")),
        backward=CastCommCodec(_one_cast(config, "backward")),
    )
    return {op.name: codecs for op in CommOp}


def _one_cast(config: Config, direction: str) -> Cast | Identity:
    if not config.embedding:
        return Identity()
    first: Codec = getattr(config.embedding[0], direction)
    for number, rule in enumerate(config.embedding):
        codec = getattr(rule, direction)
        where = f"{config.source}: embedding[{number}].{direction}"
        if not isinstance(codec, Cast | Identity):
            raise ValueError(
                f"{where}: {codec} cannot go into TorchRec's own registry, which codes a buffer "
                "in which tables are interleaved; allowed: cast, identity. Use qcomm.sharders()."
            )
        if codec != first:
            raise ValueError(
                f"{where}: {codec} differs from {first}; TorchRec's registry has one codec for "
                "all tables. Use qcomm.sharders()."
            )
    assert isinstance(first, Cast | Identity)
    return first
