"""Average replicas: each touched row becomes the mean over all, with equal bits everywhere.

    exact codec:  W = (w_0 + w_1 + ..) / N                         in rank order, float32
    other codec:  W = B + (Q(w_0 - B + r_0) + Q(w_1 - B + r_1) + ..) / N,   r_p <- what Q kept back

B is the row after the last average, which all replicas have: in the table if they did not touch the
row, else in what they kept. A replica that did not touch a row counts as B, and sends nothing.

`direct` sends every replica's touched rows to all. `two_shot` sends them to the row's owner, the
replica of number row mod N, which sends the average to all. A codec that is not exact then codes
twice, with residuals at both places.

Numerics: for exact codecs the result has the bits of a SUM in rank order, divided by N. If N is 2,
these are also the bits of stock's average. Rows that no replica touched keep their bits. In stock's
average they do so if N is a power of two. Otherwise they may move by one rounding: (x + x + x) / 3
is not x for every float32.

Knows: banks, messages, residuals. Does not know: when averages are taken, TorchRec.
Shapes: N replicas; n touched rows of a bank, u rows that some replica touched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trec_qcomm.ext.replicas.banks import Bank, TouchedRows
from trec_qcomm.ext.replicas.messages import RowMessages, Rows
from trec_qcomm.ext.replicas.residuals import Residuals

Algorithm = Literal["direct", "two_shot"]


@dataclass(frozen=True, eq=False)
class MatrixState:
    """State of one matrix in an average.

    Args:
        is_exact: whether values travel, not differences.
        sent: residuals of the rows that this replica sends; None: none are kept.
        owned: residuals of the averages that it sends as an owner; None: none are kept.
    """

    is_exact: bool
    sent: Residuals | None = None
    owned: Residuals | None = None


class Average:
    """Averages of all banks over all replicas."""

    def __init__(
        self,
        banks: Sequence[Bank],
        states: Sequence[Sequence[MatrixState]],
        messages: RowMessages,
        algorithm: Algorithm,
        num_replicas: int,
    ) -> None:
        """Prepare. Args: states: of each matrix of each bank."""
        self._banks, self.states, self._messages = banks, states, messages
        self._algorithm, self._num_replicas = algorithm, num_replicas

    def run(self, touched: Sequence[TouchedRows], *, call: int, seeds: tuple[int, int]) -> None:
        """Average all touched rows, and forget that they were touched. Collective.

        Args:
            touched: the touched rows of each bank.
            call: number of the exchange, the same on all replicas; this number and the next are
                used.
            seeds: seeds of stochastic rounding of the two places that encode.
        """
        pairs = [rows.collect() for rows in touched]
        rows, bases = [r for r, _ in pairs], [b for _, b in pairs]
        contributions = self._contributions(rows, bases)
        if self._algorithm == "direct":
            received = self._send([contributions], call, seeds[0])
        else:
            received = self._send(self._by_owner(contributions), call, seeds[0])
        means = self._means(received, rows, bases)
        if self._algorithm == "two_shot":
            means = self._share(means, call + 1, seeds[1])
        self._write(means, rows, bases)
        for of_bank in touched:
            of_bank.clear()

    def _contributions(self, rows: Sequence[Tensor], bases: Sequence[Sequence[Tensor]]) -> Rows:
        """Return the values of touched rows, or their differences with residuals."""
        values = []
        for bank, states, touched, base in zip(self._banks, self.states, rows, bases, strict=True):
            of_bank = bank.take(touched)
            for now, before, state in zip(of_bank, base, states, strict=True):
                if not state.is_exact:
                    now.sub_(before)
                if state.sent is not None:
                    now.add_(state.sent.of_rows(touched))
            values.append(of_bank)
        return Rows(rows, values)

    def _by_owner(self, whole: Rows) -> list[Rows]:
        """Return the rows of each owner."""
        parts = []
        for owner in range(self._num_replicas):
            chosen = [(r % self._num_replicas == owner).nonzero()[:, 0] for r in whole.rows]
            values = [
                [v[which] for v in of_bank]
                for of_bank, which in zip(whole.values, chosen, strict=True)
            ]
            rows = [r[which] for r, which in zip(whole.rows, chosen, strict=True)]
            parts.append(Rows(rows, values))
        return parts

    def _send(
        self, parts: Sequence[Rows], call: int, seed: int, *, owned: bool = False
    ) -> list[Rows]:
        """Send rows, and keep what was not sent."""
        kept = [[s.owned if owned else s.sent for s in of_bank] for of_bank in self.states]
        decodes = any(residuals is not None for of_bank in kept for residuals in of_bank)
        received, ours = self._messages.exchange(parts, call=call, seed=seed, decodes=decodes)
        for part, decoded in zip(parts, ours, strict=False):
            for b, of_bank in enumerate(kept):
                for k, residuals in enumerate(of_bank):
                    if residuals is not None:
                        lost = part.values[b][k] - decoded.values[b][k]
                        residuals.keep(part.rows[b], lost)
        return received

    def _means(
        self, received: Sequence[Rows], rows: Sequence[Tensor], bases: Sequence[Sequence[Tensor]]
    ) -> Rows:
        """Return the mean of what all replicas sent, of each row that some of them sent."""
        unions, means = [], []
        for b, states in enumerate(self.states):
            union = torch.unique(torch.cat([part.rows[b] for part in received]))
            places = [torch.searchsorted(union, part.rows[b]) for part in received]
            values = []
            before = self._bases(b, union, rows[b], bases[b])
            for k, state in enumerate(states):
                absent = before[k] if state.is_exact else torch.zeros_like(before[k])
                terms = (part.values[b][k] for part in received)
                values.append(_mean(absent, list(zip(places, terms, strict=True))))
            unions.append(union)
            means.append(values)
        return Rows(unions, means)

    def _share(self, means: Rows, call: int, seed: int) -> Rows:
        """Send the averages of this owner to all, and return those of all owners."""
        for b, states in enumerate(self.states):
            for k, state in enumerate(states):
                if state.owned is not None:
                    means.values[b][k].add_(state.owned.of_rows(means.rows[b]))
        received = self._send([means], call, seed, owned=True)
        rows = [torch.cat([part.rows[b] for part in received]) for b in range(len(self._banks))]
        values = [
            [torch.cat([part.values[b][k] for part in received]) for k in range(len(states))]
            for b, states in enumerate(self.states)
        ]
        return Rows(rows, values)

    def _write(
        self, means: Rows, rows: Sequence[Tensor], bases: Sequence[Sequence[Tensor]]
    ) -> None:
        for b, (bank, states) in enumerate(zip(self._banks, self.states, strict=True)):
            before = self._bases(b, means.rows[b], rows[b], bases[b])
            matrices = zip(bank.matrices.values(), states, before, means.values[b], strict=True)
            for matrix, state, base, mean in matrices:
                matrix[means.rows[b]] = mean if state.is_exact else base.add_(mean)

    def _bases(
        self, b: int, rows: Tensor, touched: Tensor, bases: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the rows of a bank as the last average left them, [u, D] of each matrix.

        Args:
            rows: [u] int64, each once, in any order.
            touched, bases: what this replica touched, [n] int64 and [n, D] of each matrix.
        """
        place = torch.searchsorted(touched, rows)
        ours = (torch.nn.functional.pad(touched, (0, 1), value=-1)[place] == rows).nonzero()[:, 0]
        values = self._banks[b].take(rows)
        for value, base in zip(values, bases, strict=True):
            value[ours] = base[place[ours]]
        return values


def _mean(absent: Tensor, terms: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the mean over replicas, summed in their order.

    Args:
        absent: [u, D], the term of a replica that did not send a row.
        terms: for each replica the places among u of what it sent, [n] int64, and that, [n, D].
    """
    total: Tensor | None = None
    for places, values in terms:
        term = absent.clone()
        term[places] = values
        total = term if total is None else total.add_(term)
    assert total is not None
    return total.div_(total.new_full((), len(terms)))  # CUDA inverts a Python number
