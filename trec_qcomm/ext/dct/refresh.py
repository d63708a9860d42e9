"""Find thresholds while training: the magnitude that a given share of the values reaches.

`refresh: {every: 10, density: 0.01}` stands in a rule of tables or of dense gradients. A threshold
is a quantile of magnitudes, exact or of a sample, updated every so many steps. In between it stays,
so the share of values that is sent grows and shrinks with the values. A schedule may let a larger
share through in the first steps. It follows the job's steps, which go on in a resumed run. Each
sender has its own thresholds.

Rows: each table has a threshold, found from the rows that this rank sends.

Gradients: a threshold is found from the values to send, residual included. Each site (a place of
the algorithm that encodes) has its own threshold, because sums at their owner differ from
contributions. With scope `layer` each parameter has its own threshold. With scope `global` all
parameters share one. A global threshold is updated after the last of a step's buckets, and used
from the next step on. Only in the first step each bucket has its own.

Source: Gupta et al. 2021 (DCT): a threshold that is updated once in many iterations, so that
choosing values costs one comparison each. Lin et al. 2018 (Deep Gradient Compression): a density
that falls at first, from 25 % exponentially. Ours: the quantile of a sample.
Shapes: P parameters of a bucket, N chunks.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import BucketChunks, ChunkSpan, Piece
from trec_qcomm.config import GradientRule
from trec_qcomm.config.section import Section
from trec_qcomm.core.fields import Range, check_fields
from trec_qcomm.ext.dct.codecs import Threshold, TopK
from trec_qcomm.ext.dual_level.schedule import Schedule
from trec_qcomm.integration.tolerances import TableTolerance

State = dict[str, dict[str, Tensor]]
_THRESHOLD, _NUM_STEPS = 0, 1  # columns of the state of a parameter at a site
_LEAST = 2.0**-126  # the threshold where the quantile is 0, so that zeros are never sent


@dataclass(frozen=True, kw_only=True)
class ThresholdRefresh(Section):
    """Rule that updates the threshold of a table or of gradients.

    Each rank finds thresholds for the values that it sends, and exchanges nothing for this. A
    schedule follows the step of the job, so it goes on in a resumed run. With another number of
    ranks, thresholds are found anew.

    This density falls at first, as in Deep Gradient Compression (Lin et al. 2018), from a quarter
    of the gradients in the first 10 steps to 1 % from step 1000 on:

        every: 10
        density: 0.01
        schedule: {kind: exponential, start: 25, end_step: 1000}

    Args:
        every: number of steps between two updates.
        density: share of the values that reach the threshold.
        sample: number of values that an update looks at, evenly spread; or `all`.
        schedule: factor of the density by the step of an update; None: 1. `density` holds from the
            first update at its `end_step` or later. `end_step` must be >= `every`, and `start`
            times `density` must be < 1.
    """

    every: Annotated[int, Range(1)]
    density: Annotated[float, Range(0, 1, is_open=True)]
    sample: Annotated[int, Range(1)] | Literal["all"] = 4096
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.schedule is not None:
            self._check_schedule(self.schedule)

    def _check_schedule(self, schedule: Schedule) -> None:
        """Raise ValueError at a schedule that lets all through, or ends too early to be seen."""
        if self.density_at(0) >= 1:
            raise ValueError(
                f"schedule.start: {schedule.multiplier(0)!r} times the density, {self.density!r}, "
                f"is not below 1; allowed: 1 <= start < {1 / self.density:g}"
            )
        if schedule.multiplier(0) > 1 and schedule.multiplier(self.every - 1) == 1:
            raise ValueError(
                f"every: {self.every}: the schedule has ended before the second update, at step "
                f"{self.every}; allowed: every <= end_step"
            )

    def density_at(self, step: int) -> float:
        """Return the share of the values that reach a threshold found at a step."""
        factor = 1.0 if self.schedule is None else self.schedule.multiplier(step)
        return self.density * factor

    def check(self, owner: Any) -> None:
        if isinstance(owner, GradientRule):
            if not isinstance(owner.codec, Threshold | TopK) or not owner.codec.threshold:
                raise ValueError("refresh: only for codecs threshold and topk with a threshold > 0")
        elif not isinstance(owner.forward, TopK) or owner.forward.threshold is None:
            raise ValueError("refresh: only for forward {codec: topk, threshold: ...}")

    def table_tolerance(self) -> "SampledThreshold":
        return SampledThreshold(self)

    def gradient_tolerances(
        self, rules: Sequence[GradientRule], chunks: BucketChunks, sites: Sequence[str]
    ) -> "ThresholdsByRule":
        return ThresholdsByRule(rules, chunks, sites)


def quantile(values: Tensor, refresh: ThresholdRefresh, *, step: int) -> float | None:
    """Return the magnitude that the step's density, a share of the sample, reaches.

    Returns None if no value of the sample is finite and nonzero.

    Args: values: float32, any shape.  refresh: density and size of the sample.  step: number of
        the step, from 0.
    """
    flat = values.reshape(-1)
    if refresh.sample != "all":
        stride = max(1, len(flat) // refresh.sample)
        flat = flat[::stride][: refresh.sample]
    sample = flat.abs()
    sample = sample[sample.isfinite()]
    if not bool(sample.any()):
        return None
    k = math.ceil(refresh.density_at(step) * len(sample))
    return max(float(sample.topk(k).values[-1]), _LEAST)


class SampledThreshold(TableTolerance):
    """Threshold of one table while training: the codec's own until the first update."""

    def __init__(self, refresh: ThresholdRefresh) -> None:
        self.refresh = refresh
        self.threshold: float | None = None  # None before the first update

    def is_due(self, step: int) -> bool:
        return step % self.refresh.every == 0

    def tolerance(self, given: float, step: int) -> float:
        return given if self.threshold is None else self.threshold

    def observe(self, rows: Tensor, step: int) -> None:
        """Update the threshold. It stays if no value is finite and nonzero."""
        threshold = quantile(rows, self.refresh, step=step)
        self.threshold = self.threshold if threshold is None else threshold

    def state_dict(self) -> dict[str, Tensor]:
        """Return {"threshold": [] float64}, NaN before the first update."""
        value = math.nan if self.threshold is None else self.threshold
        return {"threshold": torch.tensor(value, dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`. Raises ValueError if its number is not a threshold > 0."""
        value = float(state["threshold"])
        if value <= 0 or math.isinf(value):
            raise ValueError(f"threshold: {value!r} is not a number > 0")
        self.threshold = None if math.isnan(value) else value


class ThresholdsByRule:
    """Tolerances of all parameters, if at least one rule finds thresholds (comm.dense.coder)."""

    def __init__(
        self, rules: Sequence[GradientRule], model: BucketChunks, sites: Sequence[str]
    ) -> None:
        """Begin without thresholds.

        Args:
            rules: the rules; a parameter's `coding` is an index into them.
            model: all parameters as if in one bucket.
            sites: sites at which the algorithm encodes on this rank.
        """
        given = (rule.codec.tolerance for rule in rules)
        self._configured = [math.nan if tolerance is None else tolerance for tolerance in given]
        self._by_rule: list[GradientThresholds] = []
        for number, rule in enumerate(rules):
            if isinstance(rule.refresh, ThresholdRefresh):
                kind = GlobalThresholds if rule.scope == "global" else LayerThresholds
                self._by_rule.append(kind(rule.refresh, model, sites, number))

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

        Scope `global` of rule 1, 2 and so on is "all[1]", "all[2]".
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
    """Thresholds of one rank's gradients, for the parameters of one rule."""

    def __init__(
        self, refresh: ThresholdRefresh, model: BucketChunks, sites: Sequence[str], rule: int
    ) -> None:
        """Begin without thresholds.

        Args:
            refresh: rule of the updates.
            model: all parameters as if in one bucket.
            sites: sites at which the algorithm encodes on this rank.
            rule: index of the rule, which is the `coding` of its parameters.
        """
        self._refresh, self._model, self._rule = refresh, model, rule
        start = torch.tensor([math.nan, 0.0], dtype=torch.float64)
        coded = dict.fromkeys(piece.name for piece in model.pieces if self._is_ours(piece, model))
        # {scope: {site: [N, 2]}}. Row c is for messages whose first chunk is c. Its columns are the
        # threshold, NaN before the first update, and the number of steps.
        self._state: State = {
            scope: {site: start.repeat(model.num_chunks, 1) for site in sites}
            for scope in self._scopes(list(coded))
        }
        # Values of a step's buckets so far, by site and first chunk, and then by parameter and
        # place in it; and how many there were.
        self._seen: dict[tuple[str, int], dict[tuple[str, int], Tensor]] = {}
        self._num_seen: Counter[tuple[str, int]] = Counter()

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

        A parameter without any observed value keeps its entry. The other arguments are those of
        comm.dense.coder.GradientTolerances.
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
        self._num_seen[key] += sent.numel()
        ours = (p for p in self._model.pieces if self._is_ours(p, self._model))
        if self._num_seen[key] >= sum(p.numel for p in ours if first <= p.chunk <= last):
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
