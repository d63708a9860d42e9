"""Thresholds of gradients: the magnitude that a share `density` of the values reaches.

Found anew every so many steps from what is about to be sent, residual included, by each rank for
itself and for each place that encodes: the sum at its owner has a threshold of its own. In between
a threshold stays, so what is sent grows and shrinks with the gradients.

Scope `layer`: each parameter has its own. Scope `global`: all have one, found when the last of a
step's buckets has been seen and used from the next step on; only in the first step each bucket
goes by itself.

Knows: pieces of buffers, control.threshold. Does not know: codecs, messages, DDP.
Source: Gupta et al. 2021 (DCT, data parallel).
Shapes: P parameters of a bucket, N chunks.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import Chunks, Part, Piece
from trec_qcomm.control.threshold import ThresholdRefresh, quantile

State = dict[str, dict[str, Tensor]]
_THRESHOLD, _NUM_STEPS = 0, 1


class GradientThresholds(ABC):
    """Thresholds of one rank's gradients; see the module and comm.dense.coder."""

    def __init__(
        self, refresh: ThresholdRefresh, given: float, model: Chunks, sites: Sequence[str]
    ) -> None:
        """Args: given: the codec's own threshold, for what is not looked at.
        model: all parameters as if in one bucket.  sites: of the algorithm on this rank.
        """
        self._refresh, self._given = refresh, given
        start = torch.tensor([math.nan, 0.0], dtype=torch.float64)
        coded = dict.fromkeys(piece.name for piece in model.pieces if piece.coded)
        # {owner: {site: [N, 2]}}: threshold, NaN before the first look, and steps, by first chunk.
        self._found: State = {
            owner: {site: start.repeat(model.num_chunks, 1) for site in sites}
            for owner in self._owners(list(coded))
        }

    def tolerances(self, values: Tensor, chunks: Chunks, part: Part, site: str) -> Tensor:
        """Return [P] float64, the threshold of each parameter."""
        pieces = [p for p in chunks.pieces if p.coded and part.begin <= p.start < part.end]
        thresholds = torch.full((len(chunks.parameters),), self._given, dtype=torch.float64)
        if pieces:
            self._set(thresholds, values, pieces, site)
        return thresholds

    def _is_due(self, found: Tensor) -> bool:
        return int(found[_NUM_STEPS]) % self._refresh.every == 0

    @abstractmethod
    def _owners(self, names: Sequence[str]) -> Sequence[str]: ...

    @abstractmethod
    def _set(
        self, thresholds: Tensor, values: Tensor, pieces: Sequence[Piece], site: str
    ) -> None: ...

    def state_dict(self) -> State:
        """{parameter, or "all": {site: [N, 2] float64}}: thresholds and steps."""
        return {o: {s: t.clone() for s, t in sites.items()} for o, sites in self._found.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue from `state`, as far as it is of the same parameters, sites and ranks."""
        for owner, sites in self._found.items():
            for site, found in sites.items():
                loaded = state.get(owner, {}).get(site)
                if loaded is not None and loaded.shape == found.shape:
                    found.copy_(loaded)


class LayerThresholds(GradientThresholds):
    """Of each parameter."""

    def _owners(self, names: Sequence[str]) -> Sequence[str]:
        return names

    def _set(self, thresholds: Tensor, values: Tensor, pieces: Sequence[Piece], site: str) -> None:
        by_parameter: dict[int, list[Piece]] = {}
        for piece in pieces:
            by_parameter.setdefault(piece.parameter, []).append(piece)
        for number, own in by_parameter.items():
            found = self._found[own[0].name][site][pieces[0].chunk]
            if self._is_due(found):
                look = quantile(torch.cat([values[p.start : p.end] for p in own]), self._refresh)
                if look is None:  # no gradient: in the next step, then
                    continue
                found[_THRESHOLD] = look
            thresholds[number] = found[_THRESHOLD]
            found[_NUM_STEPS] += 1


class GlobalThresholds(GradientThresholds):
    """Of all parameters together."""

    def __init__(
        self, refresh: ThresholdRefresh, given: float, model: Chunks, sites: Sequence[str]
    ) -> None:
        """See GradientThresholds."""
        super().__init__(refresh, given, model, sites)
        self._numels = [0] * model.num_chunks
        for piece in model.pieces:
            self._numels[piece.chunk] += piece.numel * piece.coded
        self._seen: dict[tuple[str, int], list[Tensor]] = {}  # of a step's buckets so far
        self._num_seen: dict[tuple[str, int], int] = {}

    def _owners(self, names: Sequence[str]) -> Sequence[str]:
        return ["all"]

    def _set(self, thresholds: Tensor, values: Tensor, pieces: Sequence[Piece], site: str) -> None:
        first, last = pieces[0].chunk, pieces[-1].chunk
        found, key = self._found["all"][site][first], (site, first)
        own = torch.cat([values[p.start : p.end] for p in pieces])
        if not bool(found[_THRESHOLD].isnan()):
            thresholds.fill_(found[_THRESHOLD])
        elif (look := quantile(own, self._refresh)) is not None:
            thresholds.fill_(look)
        if self._is_due(found):
            self._seen.setdefault(key, []).append(own)
        self._num_seen[key] = self._num_seen.get(key, 0) + own.numel()
        if self._num_seen[key] >= sum(self._numels[first : last + 1]):
            self._end_step(key, found)

    def _end_step(self, key: tuple[str, int], found: Tensor) -> None:
        seen, self._num_seen[key] = self._seen.pop(key, []), 0
        if seen:
            look = quantile(torch.cat(seen), self._refresh)
            if look is None:  # no gradient at all: in the next step, then
                return
            found[_THRESHOLD] = look
        found[_NUM_STEPS] += 1
