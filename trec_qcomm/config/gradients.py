"""Rules of the all-reduce of gradients: of replicated parameters, and of DATA_PARALLEL tables.

Knows: codecs, what controls their tolerances. Does not know: YAML, DDP, process groups.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

from trec_qcomm.codecs import Threshold, TopK
from trec_qcomm.control.cost_model import Link
from trec_qcomm.control.threshold import ThresholdRefresh
from trec_qcomm.core.codec import Codec, Contract, MaskUse, check_choice, mask_use

AlgorithmChoice = Literal["auto", "ring", "recursive_doubling", "two_shot"]
Scope = Literal["layer", "global"]
OnResize = Literal["sum", "reset"]


@dataclass(frozen=True, kw_only=True)
class TableGradientRule:
    """Of DATA_PARALLEL tables. Rows that no rank touched in a step are not sent.

    Args: codec: of rows; on CUDA one of fixed size.  algorithm: `auto` is the fastest by the model
        of `link`.  link: see Link.
    """

    codec: Codec
    algorithm: AlgorithmChoice = "auto"
    link: Link = field(default=Link())

    def __post_init__(self) -> None:
        if isinstance(self.codec, type) or not isinstance(self.codec, Codec):
            raise ValueError(f"codec: expected a codec, got {self.codec!r}")
        if mask_use(self.codec) is MaskUse.READS:
            raise ValueError(f"codec: {self.codec.name} is for the gradients of embeddings only")
        check_choice("algorithm", self.algorithm, get_args(AlgorithmChoice))
        if not isinstance(self.link, Link):
            raise ValueError(f"link: expected a Link, got {self.link!r}")


@dataclass(frozen=True, kw_only=True)
class GradientRule(TableGradientRule):
    """Of replicated parameters.

    Args: codec, algorithm, link: as above; a row is a block of adjacent values.
        block: how many.  min_numel: parameters of fewer values are sent as float32, as is what is
        left of the others behind the last block.  error_feedback: add what the codec kept back to
        the next step's gradients.  refresh: sets the codec's threshold, for each parameter
        or (scope: global) for all together.  on_resize: what a resumed run of another world size
        does with what was kept back: `sum` goes on with that of all ranks, `reset` with nothing.
    """

    block: int = 128
    min_numel: int = 256
    error_feedback: bool = False
    refresh: ThresholdRefresh | None = None
    scope: Scope = "layer"
    on_resize: OnResize = "sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("on_resize", self.on_resize, get_args(OnResize))
        for name, least in (("block", 1), ("min_numel", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name}: {value!r} is not an integer >= {least}")
        if type(self.error_feedback) is not bool:
            raise ValueError(f"error_feedback: {self.error_feedback!r} is not true or false")
        check_choice("scope", self.scope, get_args(Scope))
        if self.refresh is not None and not (
            isinstance(self.codec, Threshold | TopK) and self.codec.threshold
        ):
            raise ValueError("refresh: only for codecs threshold and topk with a threshold > 0")
        if self.scope == "global" and self.refresh is None:
            raise ValueError("scope: global: only where refresh finds the threshold")
        if self.error_feedback and self.codec.contract is Contract.EXACT:
            raise ValueError(f"error_feedback: {self.codec.name} keeps nothing back")
