"""DirectionCodecs: the codecs of the tables of a collective of rows, in both directions."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from trec_qcomm.core.codec import Codec
from trec_qcomm.core.registry import codecs_of_16_bit_rows


def codec_for_rows(codec: Codec, dtype: torch.dtype, where: str) -> Codec:
    """Return the codec for rows of a dtype.

    Args: where: name of what has the codec, for the error.
    Raises: ValueError: the codec does not take such rows; the error names the codecs that do.
    """
    try:
        return codec.for_values(dtype)
    except ValueError as error:
        allowed = ", ".join(codecs_of_16_bit_rows())
        raise ValueError(f"{where}: {error}; codecs of {dtype} rows: {allowed}") from error


@dataclass(frozen=True)
class DirectionCodecs:
    """Codecs of the tables, the same on all ranks.

    Args: forward: {table: codec} of the rows.  backward: {table: codec} of their gradients.
    """

    forward: Mapping[str, Codec]
    backward: Mapping[str, Codec]

    def for_values(self, dtype: torch.dtype, name: str) -> "DirectionCodecs":
        """Return these codecs for rows of a dtype.

        Args: name: the collective's name, for the error.
        Raises: ValueError: naming a table whose codec does not take such rows.
        """
        if dtype == torch.float32:
            return self

        def chosen(direction: str, codecs: Mapping[str, Codec]) -> dict[str, Codec]:
            where = {table: f"{name}: table {table!r}: {direction}" for table in codecs}
            return {t: codec_for_rows(codec, dtype, where[t]) for t, codec in codecs.items()}

        return DirectionCodecs(chosen("forward", self.forward), chosen("backward", self.backward))

    def updated(self, changes: "DirectionCodecs") -> "DirectionCodecs":
        """Return these codecs with the changes for some tables."""
        return DirectionCodecs(
            forward={**self.forward, **changes.forward},
            backward={**self.backward, **changes.backward},
        )
