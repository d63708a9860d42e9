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

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import Chunks, Part

Site = str
CONTRIBUTION: Site = "contribution"  # of a rank's own values, with or without those of others
OWNER: Site = "owner"  # of the sum of a chunk
Key = tuple[Site, int, int]  # with the range in `values`


def stage_site(stage: int) -> Site:
    """Of stage k of recursive doubling; all ranks of a group of 2^k hold the same residual."""
    return f"stage{stage}" if stage else CONTRIBUTION


def owed(sites: Mapping[Site, Tensor]) -> Tensor:
    """What one rank's residuals [n] of a parameter, of one site or more, owe the means that follow.

    That of a stage counts once for all ranks of its group.
    """
    total = torch.zeros_like(next(iter(sites.values())))
    for site, residual in sites.items():
        stage = int(site.removeprefix("stage")) if site.startswith("stage") else 0
        total += residual / (1 << stage)
    return total


class ErrorFeedback:
    """The residuals of one rank."""

    def __init__(self, sites: Sequence[Site], numels: Mapping[str, int] | None = None) -> None:
        """Args: sites: those of the algorithm on this rank.  numels: of the parameters that
        `state_dict` names from the beginning; others follow when they are met.
        """
        self._sites = tuple(sites)
        self._kept: dict[str, dict[Site, Tensor]] = {}  # by parameter, where no bucket has them
        for name, numel in (numels or {}).items():
            self._kept[name] = {site: torch.zeros(numel) for site in self._sites}
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
        """Continue from `state`; the sites of another algorithm go over into this one's.

        Raises: ValueError: a parameter that was named before and has another size now.
        """
        known = self.state_dict()
        for name, sites in state.items():
            for site, residual in sites.items():
                if name in known and residual.shape != next(iter(known[name].values())).shape:
                    raise ValueError(f"residual of {name!r}, {site}: {list(residual.shape)} values")
        self._buckets.clear()
        self._kept = known | {name: self._translated(sites) for name, sites in state.items()}

    def _translated(self, sites: Mapping[Site, Tensor]) -> dict[Site, Tensor]:
        if set(sites) <= set(self._sites):
            return {site: residual.clone() for site, residual in sites.items()}
        return {CONTRIBUTION: owed(sites)}


class BucketResiduals:
    """The residuals of the parameters of one bucket, as they lie in `values`."""

    def __init__(self, chunks: Chunks, kept: Mapping[str, Mapping[Site, Tensor]]) -> None:
        """Raises: ValueError: a residual whose size differs from its parameter's."""
        for name, numel, _ in chunks.parameters:
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
        numel = {of.name: of.numel for of in self._chunks.parameters}
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
