"""TableGradients: the all-reduce of DATA_PARALLEL tables, of the rows that some rank touched.

TorchRec puts these tables into DDPs of their own, several tables in one flat parameter.

Knows: TorchRec's lookups, DDP. Does not know: algorithms, codecs.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.rounds import Rounds
from trec_qcomm.comm.touched_rows import all_reduce_touched
from trec_qcomm.integration.compat.private import embedding_kernels
from trec_qcomm.integration.gradients.all_reduce import GradientAllReduce


class TableGradients(GradientAllReduce):
    """Of one lookup of TorchRec: a row of a table is a row to the codec."""

    def _parts_of(
        self, module: nn.Module, names: Mapping[nn.Parameter, str]
    ) -> dict[nn.Parameter, list[ParameterShape]]:
        """Raises ValueError: a parameter whose tables are not known."""
        tables = _tables_of(module)
        for parameter, name in names.items():
            if parameter not in tables:
                raise ValueError(f"data_parallel: the tables of {name!r} are unknown")
        return {parameter: tables[parameter] for parameter in names}

    def _rounds(self, parameters: Sequence[ParameterShape], values: Tensor) -> Rounds:
        return all_reduce_touched(self._reduction, parameters, values, exact=self._is_exact())


def _tables_of(lookup: nn.Module) -> dict[nn.Parameter, list[ParameterShape]]:
    """The tables that lie one behind the other in each parameter of the lookup's kernels."""
    found = {}
    for kernel in embedding_kernels(lookup):
        tables = [
            ParameterShape(t.name, t.local_rows * t.local_cols, t.local_cols)
            for t in kernel.config.embedding_tables
        ]
        for _, parameter in kernel.named_parameters():
            if parameter.numel() == sum(table.numel for table in tables):
                found[parameter] = tables
    return found
