"""Error feedback: what a lossy codec kept back is added to the next value that is sent.

    sent = Q(value + residual),  residual <- value + residual - sent

so that after any number of steps the sum of what was sent differs from the sum of the values by the
last residual alone. Each place of an algorithm that encodes, its `site`, has residuals of its own.

Residuals are kept by the names of parameters and outlive the buckets that DDP puts these in. They
are in the unit of the mean over ranks, and are pending until the all-reduce has ended: where its
result has a NaN or inf, a step that a loss scaler skips, they stay what they were. A parameter all
of whose values are zero in a message (it got no gradient) leaves its residual for a later one.

Knows: names, pieces of buffers. Does not know: codecs, messages, algorithms.
Source: Yang et al. 2020 (error compensation).
Shapes: E values of a bucket, n of a parameter.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import Chunks, Part

Site = str
Key = tuple[Site, int, int]  # with the range in `values`


class ErrorFeedback:
    """The residuals of one rank."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[Site, Tensor]] = {}  # by parameter, where no bucket has them
        self._buckets: dict[tuple[str, ...], BucketResiduals] = {}

    def of(self, chunks: Chunks) -> "BucketResiduals":
        """Those of a bucket. What another bucket held of the same parameters moves there."""
        found = self._buckets.get(chunks.names)
        if found is None:
            names = set(chunks.names)
            for other in [key for key in self._buckets if names & set(key)]:
                self._buckets.pop(other).keep(self._kept)
            found = BucketResiduals(chunks, {n: self._kept.pop(n, {}) for n in chunks.names})
            self._buckets[chunks.names] = found
        return found

    def state_dict(self) -> dict[str, dict[Site, Tensor]]:
        """{parameter: {site: [n] float32}}, 0 where this rank's site does not code the value."""
        state = {name: dict(sites) for name, sites in self._kept.items()}
        for bucket in self._buckets.values():
            bucket.keep(state)
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[Site, Tensor]]) -> None:
        """Continue from `state`, whose sizes are checked where the parameters are met."""
        self._buckets.clear()
        self._kept = {n: {s: t.clone() for s, t in sites.items()} for n, sites in state.items()}


class BucketResiduals:
    """The residuals of the parameters of one bucket, as they lie in `values`."""

    def __init__(self, chunks: Chunks, kept: Mapping[str, Mapping[Site, Tensor]]) -> None:
        """Raises: ValueError: a residual whose size differs from its parameter's."""
        for name, numel in zip(chunks.names, chunks.numels, strict=True):
            for site, residual in kept[name].items():
                if residual.shape != (numel,):
                    raise ValueError(
                        f"residual of {name!r}, {site}: {list(residual.shape)}, not [{numel}]"
                    )
        self._chunks, self._kept = chunks, kept
        self._held: dict[Key, Tensor] = {}
        self._pending: dict[Key, Tensor] = {}

    def add(self, values: Tensor, part: Part, site: Site) -> Tensor:
        """Add the residuals to that part of `values` [E]; returns what was added."""
        key = (site, part.begin, part.end)
        if key not in self._held:
            self._held[key] = self._assembled(key)
        residual = self._held[key]
        own = values[part.begin : part.end]
        waits = self._waiting(values, part)
        if waits:
            residual = residual.clone()
            for begin, end in waits:
                residual[begin - part.begin : end - part.begin] = 0
        own += residual
        return residual

    def _waiting(self, values: Tensor, part: Part) -> list[tuple[int, int]]:
        """Ranges of `values` whose parameter is all zero in this part."""
        pieces = [p for p in self._chunks.pieces if part.begin <= p.start < part.end]
        if not pieces:
            return []
        norms = torch._foreach_norm([values[p.start : p.end] for p in pieces], torch.inf)
        largest = dict.fromkeys((p.name for p in pieces), 0.0)
        for piece, norm in zip(pieces, torch.stack(list(norms)).tolist(), strict=True):
            if norm != 0:  # NaN is not
                largest[piece.name] = 1.0
        return [(p.start, p.end) for p in pieces if not largest[p.name]]

    def note(self, before: Tensor, after: Tensor, added: Tensor, part: Part, site: Site) -> None:
        """Take note of what was to be sent and what was, both of that part; see `end`."""
        key = (site, part.begin, part.end)
        kept, held = before - after, self._held[key]
        self._pending[key] = kept if added is held else kept + (held - added)

    def end(self, *, finite: bool) -> None:
        """The all-reduce has ended; its result is finite or not."""
        if finite:
            self._held |= self._pending
        self._pending = {}

    def keep(self, kept: dict[str, dict[Site, Tensor]]) -> None:
        """Write all to `kept`, by name."""
        for name, sites in self._kept.items():
            kept[name] = {site: residual.clone() for site, residual in sites.items()}
        numel = dict(zip(self._chunks.names, self._chunks.numels, strict=True))
        for (site, begin, end), residual in self._held.items():
            for p in self._chunks.pieces:
                if begin <= p.start < end:
                    of = kept.setdefault(p.name, {}).setdefault(site, torch.zeros(numel[p.name]))
                    of[p.begin : p.begin + p.numel] = residual[p.start - begin : p.end - begin]

    def _assembled(self, key: Key) -> Tensor:
        site, begin, end = key
        found = torch.zeros(end - begin)
        for p in self._chunks.pieces:
            of = self._kept[p.name].get(site)
            if of is not None and begin <= p.start < end:
                found[p.start - begin : p.end - begin] = of[p.begin : p.begin + p.numel]
        return found
