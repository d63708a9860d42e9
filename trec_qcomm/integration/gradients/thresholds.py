"""Thresholds of gradients: the magnitude that a share `density` of the values reaches.

A threshold is updated every so many steps from what is about to be sent, residual included. In
between it stays, so the share of values that is sent grows and shrinks with the gradients. A
schedule of the density follows the number of the job's step, which goes on in a resumed run. Each
rank has thresholds of its own, and separate ones for each site, a place of the algorithm that
encodes: the sums at their owner have others than the contributions.

Scope `layer`: each parameter has its own threshold. Scope `global`: all parameters have one. It is
updated when the last of a step's buckets was seen, and used from the next step on; only in the
first step each bucket has one of its own.

Knows: pieces of buffers, control.threshold. Does not know: codecs, messages, DDP.
Source: Gupta et al. 2021 (DCT, data parallel).
Shapes: P parameters of a bucket, N chunks.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import BucketChunks, ChunkSpan, Piece
from trec_qcomm.config import GradientRule
from trec_qcomm.control.threshold import ThresholdRefresh, quantile

State = dict[str, dict[str, Tensor]]
_THRESHOLD, _NUM_STEPS = 0, 1  # columns of the state of a parameter at a site


class ThresholdsByRule:
    """Tolerances of all parameters, where some rule finds thresholds; see comm.dense.coder."""

    def __init__(
        self, rules: Sequence[GradientRule], model: BucketChunks, sites: Sequence[str]
    ) -> None:
        """Begin without thresholds.

        Args:
            rules: the rules, whose numbers are the parameters' `coding`.
            model: all parameters as if in one bucket.
            sites: the places where the algorithm encodes on this rank.
        """
        given = (rule.codec.tolerance for rule in rules)
        self._configured = [math.nan if tolerance is None else tolerance for tolerance in given]
        self._by_rule: list[GradientThresholds] = []
        for number, rule in enumerate(rules):
            if isinstance(rule.refresh, ThresholdRefresh):
                kind = GlobalThresholds if rule.scope == "global" else LayerThresholds
                self._by_rule.append(kind(rule.refresh, model, sites, rule=number))

    def tolerances(
        self, values: Tensor, chunks: BucketChunks, span: ChunkSpan, site: str, *, step: int
    ) -> Tensor:
        """Return [P] float64, the threshold of each parameter, or its codec's own tolerance."""
        given = [self._configured[parameter.coding] for parameter in chunks.parameters]
        tolerances = torch.tensor(given, dtype=torch.float64)
        for thresholds in self._by_rule:
            thresholds.write(tolerances, values, chunks, span, site, step=step)
        return tolerances

    def state_dict(self) -> State:
        """Return {parameter, or "all": {site: [N, 2] float64}}: thresholds and numbers of steps.

        The scope of all parameters of rule 1, 2 and so on is "all[1]", "all[2]".
        """
        return {
            scope: sites
            for thresholds in self._by_rule
            for scope, sites in thresholds.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue from `state`, as far as parameters, sites and number of ranks are the same."""
        for thresholds in self._by_rule:
            thresholds.load_state_dict(state)


class GradientThresholds(ABC):
    """Thresholds of one rank's gradients, of the parameters of one rule; see the module."""

    def __init__(
        self,
        refresh: ThresholdRefresh,
        model: BucketChunks,
        sites: Sequence[str],
        *,
        rule: int = 0,
    ) -> None:
        """Begin without thresholds.

        Args:
            refresh: rule of the updates.
            model: all parameters as if in one bucket.
            sites: the places where the algorithm encodes on this rank.
            rule: number of the rule whose parameters these are for, their `coding`.
        """
        self._refresh, self._rule = refresh, rule
        start = torch.tensor([math.nan, 0.0], dtype=torch.float64)
        coded = dict.fromkeys(piece.name for piece in model.pieces if self._is_ours(piece, model))
        # {scope: {site: [N, 2]}}. Row c is for messages whose first chunk is c. Its columns are the
        # threshold, NaN before the first update, and the number of steps.
        self._state: State = {
            scope: {site: start.repeat(model.num_chunks, 1) for site in sites}
            for scope in self._scopes(list(coded))
        }

    def write(
        self,
        thresholds: Tensor,
        values: Tensor,
        chunks: BucketChunks,
        span: ChunkSpan,
        site: str,
        *,
        step: int,
    ) -> None:
        """Write the thresholds of the rule's parameters to `thresholds` [P], and count the step.

        A parameter of which nothing was looked at keeps what is there. The other arguments are
        those of comm.dense.coder.GradientTolerances.
        """
        inside = (p for p in chunks.pieces if span.begin <= p.start < span.end)
        pieces = [p for p in inside if self._is_ours(p, chunks)]
        if pieces:
            self._set(thresholds, values, pieces, site, step)

    def _is_ours(self, piece: Piece, chunks: BucketChunks) -> bool:
        return piece.coded and chunks.parameters[piece.parameter].coding == self._rule

    def _is_due(self, entry: Tensor) -> bool:
        return int(entry[_NUM_STEPS]) % self._refresh.every == 0

    @abstractmethod
    def _scopes(self, names: Sequence[str]) -> Sequence[str]:
        """Return the keys of the state: what each threshold is for."""

    @abstractmethod
    def _set(
        self, thresholds: Tensor, values: Tensor, pieces: Sequence[Piece], site: str, step: int
    ) -> None:
        """Write the threshold of each piece's parameter to `thresholds` [P], and count the step."""

    def state_dict(self) -> State:
        """Return {scope: {site: [N, 2] float64}}: thresholds and numbers of steps."""
        return {
            scope: {site: entries.clone() for site, entries in sites.items()}
            for scope, sites in self._state.items()
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue from `state`, as far as parameters, sites and number of ranks are the same."""
        for scope, sites in self._state.items():
            for site, entries in sites.items():
                loaded = state.get(scope, {}).get(site)
                if loaded is not None and loaded.shape == entries.shape:
                    entries.copy_(loaded)


class LayerThresholds(GradientThresholds):
    """A threshold for each parameter."""

    def _scopes(self, names: Sequence[str]) -> Sequence[str]:
        return names

    def _set(
        self, thresholds: Tensor, values: Tensor, pieces: Sequence[Piece], site: str, step: int
    ) -> None:
        by_parameter: dict[int, list[Piece]] = {}
        for piece in pieces:
            by_parameter.setdefault(piece.parameter, []).append(piece)
        for number, its_pieces in by_parameter.items():
            entry = self._state[its_pieces[0].name][site][pieces[0].chunk]
            if self._is_due(entry):
                sent = torch.cat([values[p.start : p.end] for p in its_pieces])
                threshold = quantile(sent, self._refresh, step=step)
                if threshold is None:  # no gradient: try again in the next step
                    continue
                entry[_THRESHOLD] = threshold
            thresholds[number] = entry[_THRESHOLD]
            entry[_NUM_STEPS] += 1


class GlobalThresholds(GradientThresholds):
    """One threshold for all parameters together."""

    def __init__(
        self,
        refresh: ThresholdRefresh,
        model: BucketChunks,
        sites: Sequence[str],
        *,
        rule: int = 0,
    ) -> None:
        super().__init__(refresh, model, sites, rule=rule)
        self._numels = [0] * model.num_chunks
        for piece in model.pieces:
            self._numels[piece.chunk] += piece.numel * self._is_ours(piece, model)
        # Values of a step's buckets so far, by parameter and place in it.
        self._seen: dict[tuple[str, int], dict[tuple[str, int], Tensor]] = {}
        self._num_seen: dict[tuple[str, int], int] = {}

    def _scopes(self, names: Sequence[str]) -> Sequence[str]:
        return ["all"] if not self._rule else [f"all[{self._rule}]"]

    def _set(
        self, thresholds: Tensor, values: Tensor, pieces: Sequence[Piece], site: str, step: int
    ) -> None:
        first, last = pieces[0].chunk, pieces[-1].chunk
        (sites,), key = self._state.values(), (site, first)
        entry = sites[site][first]
        sent = torch.cat([values[p.start : p.end] for p in pieces])
        numbers = [p.parameter for p in pieces]
        if not bool(entry[_THRESHOLD].isnan()):
            thresholds[numbers] = entry[_THRESHOLD]
        elif (threshold := quantile(sent, self._refresh, step=step)) is not None:
            thresholds[numbers] = threshold
        if self._is_due(entry):
            seen = self._seen.setdefault(key, {})
            seen |= {(p.name, p.begin): values[p.start : p.end].clone() for p in pieces}
        self._num_seen[key] = self._num_seen.get(key, 0) + sent.numel()
        if self._num_seen[key] >= sum(self._numels[first : last + 1]):
            self._end_step(key, entry, step)

    def _end_step(self, key: tuple[str, int], entry: Tensor, step: int) -> None:
        seen, self._num_seen[key] = self._seen.pop(key, {}), 0
        if seen:  # in an order that does not depend on the buckets
            together = torch.cat([seen[place] for place in sorted(seen)])
            threshold = quantile(together, self._refresh, step=step)
            if threshold is None:  # no gradient at all: try again in the next step
                return
            entry[_THRESHOLD] = threshold
        entry[_NUM_STEPS] += 1
