"""TableGradients: the all-reduce of DATA_PARALLEL tables, which sends only touched rows.

TorchRec puts these tables into separate DDPs, with several tables in one flat parameter.

Knows: TorchRec's lookups, DDP. Does not know: algorithms, codecs.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from trec_qcomm.comm.dense.all_reduce import Reduction
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.comm.touched_rows import all_reduce_touched
from trec_qcomm.integration.compat.private import embedding_kernels
from trec_qcomm.integration.gradients.all_reduce import GradientAllReduce
from trec_qcomm.integration.gradients.reduction import make_reduction


class TableGradients(GradientAllReduce):
    """All-reduce of the tables of one lookup of TorchRec. A row of a table is a row to the codec.

    Only rows that at least one rank touched in a step are sent (comm.touched_rows).
    """

    _name = "DATA_PARALLEL tables' gradients"

    def _shapes_of(
        self, module: nn.Module, names: Mapping[nn.Parameter, str]
    ) -> dict[nn.Parameter, list[ParameterShape]]:
        """Raises ValueError: a parameter whose tables are not known."""
        tables = _tables_of(module)
        for parameter, name in names.items():
            if parameter not in tables:
                raise ValueError(
                    f"data_parallel: the tables of {name!r} are unknown; leave data_parallel out"
                )
        return {parameter: tables[parameter] for parameter in names}

    def _make_reduction(
        self, shapes: Sequence[ParameterShape], rank: int, world_size: int
    ) -> Reduction:
        (rule,) = self.rules
        return make_reduction(
            rule,
            shapes,
            rank,
            world_size,
            self.traffic,
            seed=self._seed,
            measure_error=self._measure_error,
        )

    def _rounds(self, shapes: Sequence[ParameterShape], values: Tensor, is_last: bool) -> Rounds:
        return all_reduce_touched(self._reduction, shapes, values, is_last=is_last)


def _tables_of(lookup: nn.Module) -> dict[nn.Parameter, list[ParameterShape]]:
    """Return the tables that lie one behind the other in each parameter of the lookup's kernels."""
    tables_by_parameter = {}
    for kernel in embedding_kernels(lookup):
        tables = [
            ParameterShape(t.name, t.local_rows * t.local_cols, t.local_cols)
            for t in kernel.config.embedding_tables
        ]
        for _, parameter in kernel.named_parameters():
            if parameter.numel() == sum(table.numel for table in tables):
                tables_by_parameter[parameter] = tables
    return tables_by_parameter
