"""IdRule: how the ids of a batch travel to the owners of their tables.

Knows: names. Does not know: YAML, TorchRec, the format.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from trec_qcomm.core.codec import check_choice

IdCodec = Literal["packed"]


@dataclass(frozen=True, kw_only=True)
class IdRule:
    """Settings of the exchange of ids. What arrives is the same bit by bit.

    Args: codec: `packed`: ids and lengths in few bits each (wire/FORMAT.md, "Messages of ids").
    """

    codec: IdCodec

    def __post_init__(self) -> None:
        check_choice("codec", self.codec, get_args(IdCodec))
