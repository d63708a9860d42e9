"""The encoder of error_bounded that is fastest on a link: which one, when; no value changes."""

from itertools import accumulate, chain, cycle

import pytest
import torch

from trec_qcomm.codecs import EncoderLink, ErrorBounded, ErrorBoundedByLink, by_link
from trec_qcomm.codecs.by_link import CANDIDATES
from trec_qcomm.config import config_from_dict, config_to_dict
from trec_qcomm.core.codec import chooser_of
from trec_qcomm.core.segments import Encoded, Segments, exclusive_cumsum
from trec_qcomm.ops.error_bound import ENCODERS

BOUND = 0.01
SECONDS = {"bitpack": 1e-6, "vector_lz": 2e-6, "rans": 8e-6}  # of all segments, both calls
NOISE, COPIES, EMPTY = range(3)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Let both calls of each candidate take its SECONDS."""
    steps = chain.from_iterable(([0.0, SECONDS[n]] * 2) for n in cycle(CANDIDATES))
    times = accumulate(steps)
    monkeypatch.setattr(by_link.time, "thread_time", lambda: next(times))


def batch(seed=0):
    """Return rows of three segments: noise, few rows again and again, nothing."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(64, 16, generator=generator)
    return torch.cat([noise, noise[:4].repeat(16, 1)]), Segments.packed([64, 64, 0], 16)


def encode(encoder, rows, segments):
    room = ErrorBounded(BOUND).max_nbytes(segments)
    payload = torch.empty(int(room.sum()), dtype=torch.uint8)
    return encoder.encode(rows, segments, payload, exclusive_cumsum(room)[:-1])


def kinds_of(encoded: Encoded) -> list[int]:
    pairs = zip(encoded.at.tolist(), encoded.nbytes.tolist(), strict=True)
    return [int(encoded.payload[at + 4]) & 15 for at, nbytes in pairs if nbytes]


def by(gb_s, every=200):
    codec = ErrorBoundedByLink.for_link(
        ErrorBounded(BOUND, encoder="auto"), EncoderLink(gb_s=gb_s, every=every)
    )
    return chooser_of(codec, 3)


@pytest.mark.parametrize(
    ("gb_s", "names"),
    [(1e-9, ["rans", "vector_lz"]), (1e9, ["bitpack", "bitpack"]), (0.4, ["bitpack", "vector_lz"])],
)
def test_the_least_seconds_of_link_and_codec(gb_s, names):
    """On a slow link bytes count, on a fast one seconds, in between both; values never change."""
    rows, segments = batch()
    encoded = encode(by(gb_s), rows, segments)
    assert kinds_of(encoded) == [ENCODERS[name] for name in names]
    decoded, expected = torch.empty_like(rows), torch.empty_like(rows)
    ErrorBounded(BOUND).decode(encoded, segments, decoded)
    plain = encode(ErrorBounded(BOUND), rows, segments)
    ErrorBounded(BOUND).decode(plain, segments, expected)
    assert torch.equal(decoded.view(torch.int32), expected.view(torch.int32))


def test_it_measures_every_so_many_calls_and_keeps_what_is_nearly_as_fast(monkeypatch):
    rows, segments = batch()
    chooser = by(1e9, every=3)
    encode(chooser, rows, segments)
    first = chooser.encoders
    assert int(first[EMPTY]) == ENCODERS["auto"]  # nothing was measured of it
    monkeypatch.setitem(SECONDS, "vector_lz", 0.98e-6)
    for call in range(1, 4):
        encode(chooser, rows, segments)
        assert torch.equal(chooser.encoders, first), call
    monkeypatch.setitem(SECONDS, "vector_lz", 0.5e-6)
    for call in range(4, 7):
        assert torch.equal(chooser.encoders, first), call
        encode(chooser, rows, segments)
    assert chooser.encoders[:2].tolist() == [ENCODERS["vector_lz"]] * 2


def test_codecs_without_a_link_encode_themselves():
    codec = ErrorBounded(BOUND, encoder="auto")
    assert chooser_of(codec, 3) is codec


def rule(**fields):
    pair = {"forward": {"codec": "error_bounded", "bound": BOUND, "encoder": "auto"}}
    return {"embedding": [{"tables": "*", "backward": "identity"} | pair | fields]}


def test_link_of_a_rule():
    config = config_from_dict(rule(link={"gb_s": 0.0125}))
    assert config.embedding[0].link == EncoderLink(gb_s=0.0125)
    assert config_from_dict(config_to_dict(config)) == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"link": {"gb_s": 0}}, r"embedding\[0\].link: gb_s: 0 is not a finite number > 0"),
        ({"link": {"gb_s": True}}, "gb_s: True is not a finite number"),
        ({"link": {"gb_s": 1.0, "every": 0}}, "every: 0 is not an integer >= 1"),
        ({"link": {}}, r"link.gb_s: missing"),
        ({"link": {"gb_s": 1.0}, "forward": "identity"}, "link: only for a codec error_bounded"),
    ],
)
def test_links_that_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        config_from_dict(rule(**fields))
