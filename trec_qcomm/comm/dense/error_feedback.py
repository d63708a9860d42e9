"""Error feedback: what a lossy codec kept back is added to the next value that is sent.

    sent = Q(value + residual),  residual <- value + residual - sent

so that after any number of steps the sum of what was sent differs from the sum of the values by the
last residual alone. Each place of an algorithm that encodes, its `site`, has residuals of its own.

Residuals are kept by the names of parameters and outlive the buckets that DDP puts these in. They
are in the unit of the mean over ranks, and are pending until the all-reduce has ended: where its
result has a NaN or inf, a step that a loss scaler skips, they stay what they were. A parameter all
of whose values are zero in a message (it got no gradient) leaves its residual for a later one.

Residuals lie where the gradients do. In a GPU's memory nothing of this waits, but the first message
of a bucket, which fetches them; state is on CPU.

Knows: names, pieces of buffers. Does not know: codecs, messages, algorithms.
Source: Yang et al. 2020 (error compensation).
Shapes: E values of a bucket, n of a parameter.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import Chunks, Part
from trec_qcomm.core.transfer import upload
from trec_qcomm.wire import frame

Site = str
CONTRIBUTION: Site = "contribution"  # of a rank's own values, with or without those of others
OWNER: Site = "owner"  # of the sum of a chunk
Key = tuple[Site, int, int]  # with the range in `values`
Waiting = list[tuple[int, int]] | Tensor  # ranges of a part; on a GPU [numel] bool


def stage_site(stage: int) -> Site:
    """Of stage k of recursive doubling; all ranks of a group of 2^k hold the same residual."""
    return f"stage{stage}" if stage else CONTRIBUTION


def owed(sites: Mapping[Site, Tensor]) -> Tensor:
    """What one rank's residuals [n] of a parameter, of one site or more, owe the means that follow.

    That of a stage counts once for all ranks of its group.
    """
    total = torch.zeros(next(iter(sites.values())).shape)
    for site, residual in sites.items():
        stage = int(site.removeprefix("stage")) if site.startswith("stage") else 0
        total += residual.cpu() / (1 << stage)
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
        """{parameter: {site: [n] float32}}, on CPU, 0 where this rank's site does not code the
        value. Waits for a GPU."""
        state = {name: dict(sites) for name, sites in self._kept.items()}
        for bucket in self._buckets.values():
            bucket.keep(state)
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[Site, Tensor]]) -> None:
        """Continue from `state`, on any device; the sites of another algorithm go over into this
        one's.

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
            return {site: residual.cpu().clone() for site, residual in sites.items()}
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
        self._places: dict[tuple[int, int], tuple[Tensor, ...]] = {}

    def add(self, values: Tensor, part: Part, site: Site) -> Waiting:
        """Add the residuals to that part of `values` [E], but those of parameters that are all zero
        in it. Returns: where these lie, for `note`."""
        key = (site, part.begin, part.end)
        if key not in self._held:
            self._held[key] = self._assembled(key).to(values.device)
        residual, own = self._held[key], values[part.begin : part.end]
        waiting = self._waiting(values, part)
        if isinstance(waiting, Tensor):
            residual = residual.masked_fill(waiting, 0)
        elif waiting:
            residual = residual.clone()
            for begin, end in waiting:
                residual[begin:end] = 0
        own += residual
        return waiting

    def _waiting(self, values: Tensor, part: Part) -> Waiting:
        pieces = [p for p in self._chunks.pieces if part.begin <= p.start < part.end]
        if not pieces:
            return []
        own = [values[p.start : p.end] for p in pieces]
        not_zero = torch.stack(list(torch._foreach_norm(own, torch.inf))) != 0  # NaN is not
        if frame.is_on_gpu(values):
            return self._mask(not_zero, part)
        got = {p.name for p, found in zip(pieces, not_zero.tolist(), strict=True) if found}
        return [(p.start - part.begin, p.end - part.begin) for p in pieces if p.name not in got]

    def _mask(self, not_zero: Tensor, part: Part) -> Tensor:
        """[numel] bool: values of parameters of which no piece is. Args: not_zero: of each piece
        of the part, bool."""
        key = part.begin, part.end
        if key not in self._places:
            pieces = [p for p in self._chunks.pieces if part.begin <= p.start < part.end]
            places = torch.tensor([[p.parameter, p.numel] for p in pieces], dtype=torch.int64)
            self._places[key] = upload(not_zero.device, *places.T.contiguous())
        parameter, numel = self._places[key]
        num_parameters = len(self._chunks.parameters)
        got = torch.zeros(num_parameters, dtype=torch.int32, device=not_zero.device)
        got.index_add_(0, parameter, not_zero.int())
        waits = got[parameter] == 0
        return torch.repeat_interleave(waits, numel, output_size=part.end - part.begin)

    def note(self, before: Tensor, after: Tensor, waiting: Waiting, part: Part, site: Site) -> None:
        """Take note of what was to be sent and what was, both of that part; see `end`."""
        key = (site, part.begin, part.end)
        kept, held = before - after, self._held[key]
        if isinstance(waiting, Tensor):
            kept = torch.where(waiting, kept + held, kept)
        else:
            for begin, end in waiting:
                kept[begin:end] += held[begin:end]
        self._pending[key] = kept

    def end(self, finite: Tensor) -> None:
        """The all-reduce has ended. Args: finite: [] bool, whether its result is."""
        if frame.is_on_gpu(finite):
            for key, kept in self._pending.items():
                self._held[key] = torch.where(finite, kept, self._held[key])
        elif bool(finite):
            self._held |= self._pending
        self._pending = {}

    def keep(self, kept: dict[str, dict[Site, Tensor]]) -> None:
        """Write all to `kept`, by name."""
        for name, sites in self._kept.items():
            kept[name] = {site: residual.clone() for site, residual in sites.items()}
        numel = {of.name: of.numel for of in self._chunks.parameters}
        for (site, begin, end), held in self._held.items():
            residual = held.cpu()
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
