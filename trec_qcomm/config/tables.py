"""TableRule: how the rows of some tables, and their gradients, are coded.

Knows: codecs, what controls their tolerances. Does not know: YAML, TorchRec, process groups.
"""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from trec_qcomm.codecs import ErrorBounded, Identity, TopK
from trec_qcomm.control.error_bound import OnlineClasses
from trec_qcomm.control.schedule import Schedule
from trec_qcomm.control.threshold import ThresholdRefresh
from trec_qcomm.core.codec import Codec, MaskUse, check_choice, mask_use

UniqueBagsChoice = bool | Literal["auto"]


def _check_codecs(pair: "HopCodecs | TableRule") -> None:
    for name in ("forward", "backward"):
        codec = getattr(pair, name)
        if isinstance(codec, type) or not isinstance(codec, Codec):
            raise ValueError(f"{name}: expected a codec, got {codec!r}")
    if mask_use(pair.forward) is MaskUse.READS:
        raise ValueError(f"forward: {pair.forward.name} is for backward only")
    if mask_use(pair.backward) is MaskUse.READS and mask_use(pair.forward) is not MaskUse.WRITES:
        raise ValueError(
            f"backward: {pair.backward.name} sends the columns that forward kept, "
            f"so forward must be topk, not {pair.forward.name}"
        )


@dataclass(frozen=True, kw_only=True)
class HopCodecs:
    """Codecs of one hop. Args: forward: of rows.  backward: of their gradients."""

    forward: Codec = field(default=Identity())
    backward: Codec = field(default=Identity())

    def __post_init__(self) -> None:
        _check_codecs(self)


@dataclass(frozen=True, kw_only=True)
class TableRule:
    """Codecs of the embedding exchanges for all tables that match one of the patterns.

    Args: tables: shell patterns (`*`, `?`, `[..]`), case-sensitive.  forward: codec of rows.
        backward: codec of their gradients.  intra: codecs of the hop inside a node, which only
        table_row_wise and grid_shard tables have; `forward` and `backward` are then those of the
        hop between nodes.  unique_bags: look up and send equal bags of a batch once. Exact; true
        is an error where it would not be, auto is used where it is and where bags repeat.
        schedule: multiplies the error bound of `forward`.  classes: sets it, table by table, from
        the rows that each rank sends.  refresh: sets the threshold of a forward topk likewise.
    """

    tables: tuple[str, ...]
    forward: Codec
    backward: Codec
    intra: HopCodecs = field(default=HopCodecs())
    unique_bags: UniqueBagsChoice = False
    schedule: Schedule | None = None
    classes: OnlineClasses | None = None
    refresh: ThresholdRefresh | None = None

    def __post_init__(self) -> None:
        if type(self.tables) is not tuple or not self.tables:
            raise ValueError("tables: expected a list of one or more patterns")
        if not all(type(pattern) is str and pattern for pattern in self.tables):
            raise ValueError("tables: expected a list of one or more patterns")
        _check_codecs(self)
        if not isinstance(self.intra, HopCodecs):
            raise ValueError(f"intra: expected HopCodecs, got {self.intra!r}")
        check_choice("unique_bags", self.unique_bags, (True, False, "auto"))
        self._check_error_bounds()

    def _check_error_bounds(self) -> None:
        has_threshold = isinstance(self.forward, TopK) and self.forward.threshold is not None
        if self.refresh is not None and not has_threshold:
            raise ValueError("refresh: only for forward {codec: topk, threshold: ...}")
        for name in ("schedule", "classes"):
            if getattr(self, name) is not None and not isinstance(self.forward, ErrorBounded):
                raise ValueError(
                    f"{name}: only forward {{codec: error_bounded}} has an error bound"
                )
        if not isinstance(self.forward, ErrorBounded) or self.forward.mode != "rel":
            if self.classes is not None:
                raise ValueError("classes: only for forward error_bounded of mode rel")
            return
        largest = self.classes.loose if self.classes is not None else self.forward.bound
        factor = self.schedule.multiplier(0) if self.schedule is not None else 1.0
        if largest * factor >= 1:
            raise ValueError(f"schedule: starts with a relative bound of {largest * factor:g} >= 1")

    def matches(self, table: str) -> bool:
        """Whether this rule speaks of that table."""
        return any(fnmatchcase(table, pattern) for pattern in self.tables)
