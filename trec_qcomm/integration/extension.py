"""Extension: what an optional part of a training adds to a session; ext/ and lab/ have extensions.

A section of a config makes an extension (`config.section.Section.extension`). A method of QComm
that belongs to a tool may make one, too. The session calls the methods below and knows nothing else
of its extensions.

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
    """Base of extensions. Each method does nothing unless a subclass overrides it.

    Attributes:
        traffic: counter of the bytes that the extension sends, part of the session's statistics;
            None: it sends nothing.
    """

    traffic: Traffic | None = None

    def check_tables(
        self, tables: Iterable[str], dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        """Raise ValueError if the extension does not take rows of these tables.

        Args: dtype: dtype of the rows.  device: device of the module, where it is known.
        """

    def changes_of(self, rules: Mapping[str, TableRule]) -> Iterator[CodecChanges]:
        """Yield all changes of codecs that the extension may ask for later.

        Args: rules: {table: rule of the config}.
        """
        yield from ()

    def add_collective(self, collective: RowCollective, module: str) -> None:
        """Learn of a new collective, and add observers to it. Args: module: path of its module.

        Raises: ValueError: the collective cannot be observed.
        """

    def add_gradients(self, name: str, gradients: GradientAllReduce) -> None:
        """Learn of an all-reduce that was registered. Args: name: its name, such as "dense"."""

    def in_summary(self) -> str:
        """Return text to show below the table of `QComm.summary`; may be empty."""
        return ""

    def check_names(self) -> None:
        """Raise ValueError at a name that the model, which is wrapped now, does not have."""

    def check_step(self, step: int) -> None:
        """Raise ValueError in a training that lacks a call that the extension needs.

        Args: step: number of the collective's step that begins.
        """
