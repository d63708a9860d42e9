"""error_bounded whose sender chooses, on a link, the encoder that takes the least time.

    seconds of a segment = encoded bytes / link + seconds to encode and to decode it

The least seconds are the largest speed-up of control.selector, 1 / (1/CR + B (1/Tc + 1/Td)): that
is this sum over the seconds that float32 would take. Bytes and seconds are measured on the rows
that are sent, segment by segment, every so many calls.

A segment says its encoder, and the encoders differ in bytes only: ranks need not agree, and what
a training learns does not depend on the choice. So the choice, which depends on the clock, is in
no checkpoint.
Source: SC'24 (Feng, Zhang et al.), choice of the encoder by table; measured while training is ours.
"""

import math
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from trec_qcomm.codecs.error_bounded import ErrorBounded
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.ops.error_bound import ENCODERS

CANDIDATES = ("bitpack", "vector_lz", "rans")
_MARGIN = 0.97  # another encoder is taken where it needs less than this share of the seconds


@dataclass(frozen=True, kw_only=True)
class EncoderLink:
    """Network that `encoder: auto` chooses for.

    Args:
        gb_s: GB/s (10^9 bytes) that one rank can send, > 0.
        every: calls between two measurements, >= 1. A call that measures takes several times as
            long: all encoders code what is sent, twice.
    """

    gb_s: float
    every: int = 200

    def __post_init__(self) -> None:
        if type(self.gb_s) not in (int, float) or not 0 < self.gb_s < math.inf:
            raise ValueError(f"gb_s: {self.gb_s!r} is not a finite number > 0")
        if type(self.every) is not int or self.every < 1:
            raise ValueError(f"every: {self.every!r} is not an integer >= 1")


@dataclass(frozen=True)
class ErrorBoundedByLink(ErrorBounded):
    """error_bounded with `encoder: auto`, whose choice is the fastest on a link.

    Args: link: the network.
    """

    link: EncoderLink = EncoderLink(gb_s=1.0)

    has_gpu_kernels: ClassVar[bool] = False

    @staticmethod
    def for_link(codec: ErrorBounded, link: EncoderLink) -> "ErrorBoundedByLink":
        """Return the codec with a link."""
        return ErrorBoundedByLink(codec.bound, codec.mode, codec.encoder, link)

    def chooser(self, num_segments: int) -> "EncoderChooser":
        """Return what encodes so many segments call after call: see core.codec.chooser_of."""
        return EncoderChooser(self, num_segments)


class EncoderChooser:
    """Encoder of each segment of calls that always have the same segments, with other rows.

    Attributes: encoders: [S] int64, what the next call takes, unless it measures.
    """

    def __init__(self, codec: ErrorBoundedByLink, num_segments: int) -> None:
        self.codec, self._num_calls = codec, 0
        self.encoders = torch.full((num_segments,), ENCODERS["auto"], dtype=torch.int64)

    def encode(
        self,
        values: Tensor,
        segments: Segments,
        payload: Tensor,
        at: Tensor,
        *,
        seed: int = 0,
        tolerances: Tensor | None = None,
    ) -> Encoded:
        """Do what the codec's `encode` does, with the chosen encoders; measure where it is due."""
        arguments: dict[str, Any] = {"seed": seed, "tolerances": tolerances}
        if self._num_calls % self.codec.link.every == 0:
            self._measure(values, segments, payload, at, arguments)
        self._num_calls += 1
        return self.codec.encode(values, segments, payload, at, **arguments, encoders=self.encoders)

    def _measure(
        self,
        values: Tensor,
        segments: Segments,
        payload: Tensor,
        at: Tensor,
        arguments: dict[str, Any],
    ) -> None:
        """Choose by the bytes and seconds of all candidates. What they write to payload is lost.

        The seconds of a call are shared out by numbers of rows.
        """
        decoded, num_rows = torch.empty_like(values), segments.num_rows
        seconds = []
        for name in CANDIDATES:
            encoders = torch.full_like(self.encoders, ENCODERS[name])
            codec_s = math.inf
            for _ in range(2):  # the first call may compile, and finds cold caches
                begin = time.thread_time()
                encoded = self.codec.encode(
                    values, segments, payload, at, **arguments, encoders=encoders
                )
                self.codec.decode(encoded, segments, decoded)
                codec_s = min(codec_s, time.thread_time() - begin)
            share = num_rows.double() / max(int(num_rows.sum()), 1)
            seconds.append(encoded.nbytes.double() / (1e9 * self.codec.link.gb_s) + codec_s * share)
        self._take(torch.stack(seconds), num_rows > 0)

    def _take(self, seconds: Tensor, has_rows: Tensor) -> None:
        """Choose by seconds [candidates, S]; a segment without rows keeps its encoder."""
        numbers = torch.tensor([ENCODERS[name] for name in CANDIDATES])
        fastest = seconds.argmin(dim=0)
        best = seconds.gather(0, fastest[None])[0]
        current = torch.where(numbers[:, None] == self.encoders, seconds, math.inf).amin(dim=0)
        changes = has_rows & (best < _MARGIN * current)
        self.encoders = torch.where(changes, numbers[fastest], self.encoders)
