"""Extension: what an optional part of a training adds to a session; ext/ and lab/ have them.

A section of a config makes one (`config.section.Section.extension`), and so may a method of QComm
that belongs to a tool. The session calls its extensions at the places below and knows nothing else
of them.

Knows: collectives of rows, all-reduces of gradients. Does not know: what any extension does.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch

from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.config import TableRule
from trec_qcomm.core.counters import Traffic
from trec_qcomm.integration.current_rules import CodecChanges
from trec_qcomm.integration.gradients.all_reduce import GradientAllReduce


class Extension:
    """Base of extensions; each method does nothing unless a subclass has it.

    Attributes:
        traffic: counter of what the extension sends, part of the session's statistics; None: it
            sends nothing.
    """

    traffic: Traffic | None = None

    def check_tables(
        self, tables: Iterable[str], dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        """Raise ValueError where the extension does not take rows of these tables.

        Args: dtype: dtype of the rows.  device: device of the module, where it is known.
        """

    def changes_of(self, rules: Mapping[str, TableRule]) -> Iterator[CodecChanges]:
        """Yield the changes of codecs that the extension may ask for later, all in all.

        Args: rules: {table: rule of the config}.
        """
        yield from ()

    def add_collective(self, collective: RowCollective, module: str) -> None:
        """Learn of a new collective, and add observers to it. Args: module: path of its module.

        Raises: ValueError: it cannot be observed.
        """

    def add_gradients(self, name: str, gradients: GradientAllReduce) -> None:
        """Learn of an all-reduce that was registered. Args: name: "dense", or of another one."""

    def in_summary(self) -> str:
        """Return what is to be told below the table of `QComm.summary`; empty: nothing."""
        return ""

    def check_names(self) -> None:
        """Raise ValueError at a name that the model does not have; all of it is wrapped now."""

    def check_step(self, step: int) -> None:
        """Raise ValueError in training without a call that the extension needs.

        Args: step: number of the collective's step that begins.
        """
