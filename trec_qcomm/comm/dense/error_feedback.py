"""Error feedback: add the error of a lossy codec to the next value that is sent.

    sent = Q(value + residual),  residual <- value + residual - sent

After any number of steps, the sum of all sent values differs from the sum of all values by the last
residual alone. A `site` is a place of an algorithm that encodes; each site has its own residuals.

Residuals are kept by the names of parameters, so they outlive DDP's buckets. They are in the unit
of the mean over ranks. New residuals are pending until the all-reduce has ended. If its result has
a NaN or inf (a step that a loss scaler skips), the old residuals stay. A parameter that got no
gradient has only zeros in a message; its residual then waits for a later message.

Residuals lie in the memory of the gradients from the beginning, also while DDP forms its buckets
anew. On a GPU only state makes the host wait: the first message of a bucket copies loaded state to
the GPU, and `state_dict` is on CPU.

Knows: names, pieces of buffers. Does not know: codecs, messages, algorithms.
Source: Yang et al. 2020 (error compensation); a residual at each place that encodes is ours.
Shapes: E values of a bucket, n of a parameter.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from trec_qcomm.comm.dense.chunks import BucketChunks, ChunkSpan
from trec_qcomm.core.transfer import upload
from trec_qcomm.wire import frame

Site = str
CONTRIBUTION: Site = "contribution"  # encodes a rank's own values, or a sum with others' values
OWNER: Site = "owner"  # encodes the sum of a chunk
INSIDE: Site = "inside"  # encodes a rank's own values for its node; no residuals are kept there
Key = tuple[Site, int, int]  # a site and a range in `values`
Waiting = list[tuple[int, int]] | Tensor  # values without a gradient: ranges; on a GPU [numel] bool


def stage_site(stage: int) -> Site:
    """Return the site of one stage of recursive doubling.

    All ranks of a group of 2^stage hold the same residual there.
    """
    return f"stage{stage}" if stage else CONTRIBUTION


def node_sites(num_nodes: int) -> tuple[Site, Site]:
    """Return the two sites of the hop between nodes: a node's sums of a shard, and all nodes' sums.

    The number of nodes decides which values a rank has there, so the names contain it.
    """
    return f"contribution of {num_nodes} nodes", f"owner of {num_nodes} nodes"


def owed(sites: Mapping[Site, Tensor]) -> Tensor:
    """Return [n], what one rank's residuals of a parameter will add to the means that follow.

    All 2^stage ranks of a group hold the same residual of a stage, so each rank counts its part.

    Args: sites: the residual [n] at each site, one or more.
    """
    total = torch.zeros(next(iter(sites.values())).shape)
    for site, residual in sites.items():
        total += residual.cpu() / _num_holders(site)
    return total


def scaled(sites: Mapping[Site, Tensor], factor: float) -> dict[Site, Tensor]:
    """Return the residuals of one parameter times a factor."""
    return {site: residual * factor for site, residual in sites.items()}


class ErrorFeedback:
    """Residuals of one rank."""

    def __init__(self, sites: Sequence[Site], numels: Mapping[str, int] | None = None) -> None:
        """Begin without residuals.

        Args:
            sites: sites at which the algorithm encodes on this rank.
            numels: sizes of the parameters that `state_dict` names from the beginning. It names
                other parameters after their first bucket.
        """
        self._sites, self._numels = tuple(sites), dict(numels or {})
        # Residuals by parameter until a bucket takes them. Of a site that is missing they are zero.
        self._kept: dict[str, dict[Site, Tensor]] = {}
        self._buckets: dict[tuple[str, ...], BucketResiduals] = {}

    def for_bucket(self, chunks: BucketChunks, device: torch.device) -> "BucketResiduals":
        """Return the residuals of a bucket, taken over from buckets that had its parameters before.

        Args: chunks: the chunks of the bucket.  device: the device of its gradients.
        """
        residuals = self._buckets.get(chunks.names)
        if residuals is None:
            names = set(chunks.names)
            for other in [key for key in self._buckets if names & set(key)]:
                self._buckets.pop(other).write_to(self._kept)
            kept = {name: self._kept.pop(name, {}) for name in chunks.names}
            residuals = BucketResiduals(chunks, kept, device)
            fed = [p for n, p in enumerate(chunks.parameters) if chunks.feeds(n)]
            self._numels |= {parameter.name: parameter.numel for parameter in fed}
            self._buckets[chunks.names] = residuals
        return residuals

    def state_dict(self) -> dict[str, dict[Site, Tensor]]:
        """Return {parameter: {site: [n] float32}} on CPU. Waits for a GPU.

        Values are 0 where this rank's site does not code the value.
        """
        kept = {name: dict(sites) for name, sites in self._kept.items()}
        for bucket in self._buckets.values():
            bucket.write_to(kept)
        state = {
            name: {site: torch.zeros(numel) for site in self._sites}
            for name, numel in self._numels.items()
        }
        for name, sites in kept.items():
            on_cpu = {site: residual.cpu() for site, residual in sites.items()}
            state[name] = state.get(name, {}) | on_cpu
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[Site, Tensor]]) -> None:
        """Continue from `state`, on any device.

        Residuals of another algorithm's sites are summed up (`owed`) and go to CONTRIBUTION.

        Raises: ValueError: a parameter that has another size now, or residuals that `takes`
            refuses.
        """
        known = self.state_dict()
        for name, sites in state.items():
            for site, residual in sites.items():
                size = residual.shape
                due = next(iter(known[name].values())).shape if name in known else size
                if size != due:
                    raise ValueError(f"residual of {name!r}, {site}: {list(size)}, not {list(due)}")
        self._buckets.clear()
        self._kept = known | {name: self._translated(sites) for name, sites in state.items()}

    def takes(self, sites: Iterable[Site]) -> bool:
        """Return whether this rank alone can go on with the residuals that it kept at some sites.

        Between nodes a rank sends its shard only. Residuals of all values, kept at another site,
        must therefore be shared with other ranks.
        """
        return CONTRIBUTION in self._sites or set(sites) <= set(self._sites)

    def _translated(self, sites: Mapping[Site, Tensor]) -> dict[Site, Tensor]:
        if set(sites) <= set(self._sites):
            return {site: residual.cpu().clone() for site, residual in sites.items()}
        if not self.takes(sites):
            raise ValueError(
                f"residuals at {', '.join(sites)}: this rank encodes at {', '.join(self._sites)}; "
                "use load_resized"
            )
        return {CONTRIBUTION: owed(sites)}


class BucketResiduals:
    """Residuals of the parameters of one bucket, in the order of `values`."""

    def __init__(
        self, chunks: BucketChunks, kept: Mapping[str, Mapping[Site, Tensor]], device: torch.device
    ) -> None:
        """Take over residuals.

        Args:
            chunks: the chunks of the bucket.
            kept: {parameter: {site: [n] float32}}, on any device; a missing site has zeros.
            device: the device of the gradients.
        """
        self._chunks, self._device = chunks, device
        # Until the first all-reduce has all of it in `_held`.
        self._kept = {
            name: {site: residual.to(device) for site, residual in sites.items()}
            for name, sites in kept.items()
        }
        self._fed = [p for p in chunks.pieces if chunks.feeds(p.parameter)]
        self._held: dict[Key, Tensor] = {}
        self._pending: dict[Key, Tensor] = {}
        self._places: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self._fed_places: dict[tuple[int, int], Tensor] = {}

    def add(self, values: Tensor, span: ChunkSpan, site: Site) -> Waiting:
        """Add the residuals to a span of `values` [E].

        Parameters whose values are all zero in the span get no residual; their residuals wait.

        Returns: the places of the waiting parameters, for `note`.
        """
        key = (site, span.begin, span.end)
        if key not in self._held:
            self._held[key] = self._assembled(key)
        residual, sent_values = self._held[key], values[span.begin : span.end]
        waiting = self._waiting(values, span)
        if isinstance(waiting, Tensor):
            residual = residual.masked_fill(waiting, 0)
        elif waiting:
            residual = residual.clone()
            for begin, end in waiting:
                residual[begin:end] = 0
        sent_values += residual
        return waiting

    def _waiting(self, values: Tensor, span: ChunkSpan) -> Waiting:
        """Return the values of parameters whose pieces in the span are all zero."""
        pieces = [p for p in self._chunks.pieces if span.begin <= p.start < span.end]
        if not pieces:
            return []
        values_of_pieces = [values[p.start : p.end] for p in pieces]
        norms = torch.stack(list(torch._foreach_norm(values_of_pieces, torch.inf)))
        not_zero = norms != 0  # true of NaN, too
        if not frame.is_on_gpu(values):  # where a mask would take longer than all else
            got = {p.name for p, is_not in zip(pieces, not_zero.tolist(), strict=True) if is_not}
            return [(p.start - span.begin, p.end - span.begin) for p in pieces if p.name not in got]
        key = span.begin, span.end
        if key not in self._places:
            places = torch.tensor([[p.parameter, p.numel] for p in pieces], dtype=torch.int64)
            self._places[key] = upload(not_zero.device, *places.T.contiguous())
        parameter, numel = self._places[key]
        num_parameters = len(self._chunks.parameters)
        counts = torch.zeros(num_parameters, dtype=torch.int32, device=not_zero.device)
        counts.index_add_(0, parameter, not_zero.int())
        waits = counts[parameter] == 0
        return torch.repeat_interleave(waits, numel, output_size=span.end - span.begin)

    def note(
        self, before: Tensor, after: Tensor, waiting: Waiting, span: ChunkSpan, site: Site
    ) -> Tensor:
        """Keep the difference between what was to be sent and what was sent, until `end`.

        Args: before, after: [numel of the span] float32.  waiting: the result of `add`.
        Returns: the new residual, [numel of the span] float32, not to be changed.
        """
        key = (site, span.begin, span.end)
        kept, held = before - after, self._held[key]
        if len(self._fed) < len(self._chunks.pieces):
            kept = torch.where(self._is_fed(span, kept.device), kept, 0)
        if isinstance(waiting, Tensor):
            kept = torch.where(waiting, kept + held, kept)
        else:
            for begin, end in waiting:
                kept[begin:end] += held[begin:end]
        self._pending[key] = kept
        return kept

    def _is_fed(self, span: ChunkSpan, device: torch.device) -> Tensor:
        """Return [numel of the span] bool, true at values of parameters that have residuals."""
        key = span.begin, span.end
        if key not in self._fed_places:
            fed = torch.zeros(span.end - span.begin, dtype=torch.bool, device=device)
            for p in self._fed:
                if span.begin <= p.start < span.end:
                    fed[p.start - span.begin : p.end - span.begin] = True
            self._fed_places[key] = fed
        return self._fed_places[key]

    def end(self, finite: Tensor) -> None:
        """Take over the new residuals, if the result of the all-reduce is finite.

        Args: finite: [] bool.
        """
        if frame.is_on_gpu(finite):
            for key, kept in self._pending.items():
                self._held[key] = torch.where(finite, kept, self._held[key])
        elif bool(finite):
            self._held |= self._pending
        self._pending = {}
        self._kept = {name: {} for name in self._kept}

    def write_to(self, kept: dict[str, dict[Site, Tensor]]) -> None:
        """Write all residuals to `kept`, by name and site, on the device of the gradients."""
        for number, (name, *_) in enumerate(self._chunks.parameters):
            if self._chunks.feeds(number):
                kept[name] = {site: residual.clone() for site, residual in self._kept[name].items()}
        for (site, begin, end), residual in self._held.items():
            for p in self._fed:
                if begin <= p.start < end:
                    sites = kept.setdefault(p.name, {})
                    if site not in sites:
                        sites[site] = residual.new_zeros(self._chunks.parameters[p.parameter].numel)
                    whole = sites[site]
                    whole[p.begin : p.begin + p.numel] = residual[p.start - begin : p.end - begin]

    def _assembled(self, key: Key) -> Tensor:
        site, begin, end = key
        residual = torch.zeros(end - begin, device=self._device)
        for p in self._fed:
            whole = self._kept[p.name].get(site)
            if whole is not None and begin <= p.start < end:
                residual[p.start - begin : p.end - begin] = whole[p.begin : p.begin + p.numel]
        return residual


class LostValues:
    """Errors of the codecs in one all-reduce, summed up and not added to any value.

    This takes the place of BucketResiduals where the caller keeps the errors in another form.
    Summed over all ranks, `lost` is what the result lacks.

    Attributes:
        lost: [E] float32, this rank's share, in the order of `values`.
    """

    def __init__(self, values: Tensor) -> None:
        """Begin without losses. Args: values: [E] float32, the values that are all-reduced."""
        self.lost = torch.zeros_like(values)

    def add(self, values: Tensor, span: ChunkSpan, site: Site) -> Waiting:
        """Add nothing."""
        return []

    def note(
        self, before: Tensor, after: Tensor, waiting: Waiting, span: ChunkSpan, site: Site
    ) -> Tensor:
        """Add the codec's error to `lost`. The arguments are those of BucketResiduals.note."""
        lost = before - after
        self.lost[span.begin : span.end] += lost / _num_holders(site)
        return lost

    def end(self, finite: Tensor) -> None:
        """Do nothing."""


def _num_holders(site: Site) -> int:
    """Return how many ranks keep back the same at a site."""
    return 1 << int(site.removeprefix("stage")) if site.startswith("stage") else 1
