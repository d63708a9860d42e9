"""Bytes that each rank of a Case must send, from the plan and FORMAT.md alone.

A frame is what a rank sends one peer in one exchange: segments of (table, rows, dim). Rank r of
node m is number l = r mod L in it, L ranks a node; a hop inside nodes goes to the others of node
m, a hop between nodes to number l of the others.
"""

from collections import defaultdict

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.bounds import TWO_LEVEL, WHOLE_COLUMNS
from tests.integration.sharded_models.cases import RW, Case, Shard, Table, shards
from trec_qcomm import Cast, Codec, Identity

Frame = list[tuple[Table, int, int]]
FORWARD, BACKWARD = "embedding_forward", "embedding_backward"


def frames_of(case: Case, rank: int, world_size: int) -> dict[str, list[Frame]]:
    """Return by kind of traffic all frames that a rank sends to others in one step."""
    frames: dict[str, list[Frame]] = defaultdict(list)
    for sharding in dict.fromkeys(case.kind(table) for table in case.tables):
        tables = [table for table in case.tables if case.kind(table) == sharding]
        parts = [(t, s) for t in tables for s in shards(case, t, world_size) for _ in t.features]
        if sharding in TWO_LEVEL:
            _two_levels(case, parts, rank, world_size, frames)
        elif sharding == RW and not case.sequence:
            _row_wise(case, parts, rank, world_size, frames)
        elif case.sequence:
            _sequence(case, tables, rank, world_size, frames)
        elif sharding in WHOLE_COLUMNS:
            _whole_columns(case, parts, rank, world_size, frames)
    return {kind: [frame for frame in frames if frame] for kind, frames in frames.items()}


def _whole_columns(case, parts, rank, world_size, frames) -> None:
    """Add frames: owners send each peer its samples, which sends gradients back."""
    for peer in _others(rank, world_size):
        mine, theirs = case.batch_size(rank), case.batch_size(peer)
        frames[FORWARD].append([(t, theirs, s.num_cols) for t, s in parts if s.rank == rank])
        frames[BACKWARD].append([(t, mine, s.num_cols) for t, s in parts if s.rank == peer])


def _row_wise(case, parts, rank, world_size, frames) -> None:
    """Add frames: partial sums of bags with an id in the rank's rows, and their gradients."""
    parts = [
        (t, s, f)
        for t in dict.fromkeys(t for t, _ in parts)
        for s in shards(case, t, world_size)
        for f in t.features
    ]
    batches = [batch(case, 0, r) for r in range(world_size)]
    for peer in _others(rank, world_size):
        frames[FORWARD].append(
            [(t, _num_bags(batches[peer], f, s), s.num_cols) for t, s, f in parts if s.rank == rank]
        )
        frames[BACKWARD].append(
            [(t, _num_bags(batches[rank], f, s), s.num_cols) for t, s, f in parts if s.rank == peer]
        )


def _two_levels(case, parts, rank, world_size, frames) -> None:
    """Add frames of both hops.

    Inside the node: partial sums of all samples of the ranks with one number, of all nodes.
    Between nodes: the sums of one rank's samples.
    """
    size = case.node_size or world_size
    node, number = divmod(rank, size)
    local_parts = [(t, s.num_cols) for t, s in parts if s.rank == rank]
    of_number = [sum(case.batch_size(r) for r in range(n, world_size, size)) for n in range(size)]
    for peer in _others(number, size):
        frames[f"intra_{FORWARD}"].append([(t, of_number[peer], dim) for t, dim in local_parts])
        frames[f"intra_{BACKWARD}"].append([(t, of_number[number], dim) for t, dim in local_parts])
    for peer in range(number, world_size, size):
        if peer // size != node:
            mine, theirs = case.batch_size(rank), case.batch_size(peer)
            frames[FORWARD].append([(t, theirs, dim) for t, dim in local_parts])
            frames[BACKWARD].append([(t, mine, s.num_cols) for t, s in parts if s.rank == peer])


def _sequence(case, tables, rank, world_size, frames) -> None:
    """Add frames: one row for each id, from the owner of the row to the owner of the sample."""
    parts = [(t, s, f) for t in tables for s in shards(case, t, world_size) for f in t.features]
    batches = [batch(case, 0, r) for r in range(world_size)]
    for peer in _others(rank, world_size):
        asked = [
            (t, _num_ids(batches[peer], f, s), s.num_cols) for t, s, f in parts if s.rank == rank
        ]
        asking = [
            (t, _num_ids(batches[rank], f, s), s.num_cols) for t, s, f in parts if s.rank == peer
        ]
        frames[FORWARD].append(asked)
        frames[BACKWARD].append(asking)


def _num_ids(features: KeyedJaggedTensor, feature: str, shard: Shard) -> int:
    ids = features[feature].values()
    return int(((ids >= shard.row) & (ids < shard.row + shard.num_rows)).sum())


def _num_bags(features: KeyedJaggedTensor, feature: str, shard: Shard) -> int:
    """Count the bags that have an id in the shard's rows."""
    jagged = features[feature]
    bags = jagged.values().split(jagged.lengths().tolist())
    return sum(
        bool(((ids >= shard.row) & (ids < shard.row + shard.num_rows)).any()) for ids in bags
    )


def _others(rank: int, size: int) -> list[int]:
    return [r for r in range(size) if r != rank]


def segment_nbytes(codec: Codec, num_rows: int, dim: int) -> int:
    """Return a segment's size (FORMAT.md, "Segment")."""
    if codec == Identity():
        nbytes = 4 * num_rows * dim
    elif isinstance(codec, Cast):
        nbytes = 2 * num_rows * dim
    else:
        nbytes = num_rows * (4 + -(-codec.bits * dim // 8))
    return -(-nbytes // 8) * 8


def frame_header_nbytes(num_segments: int) -> int:
    """Return the size of a frame's header (FORMAT.md, "Frame")."""
    return -(-(32 + 12 * num_segments) // 8) * 8


def _is_framed(case: Case, kind: str, codecs: dict[str, dict[str, Codec]], num_ranks: int) -> bool:
    """Return whether rows of a kind travel in frames: TorchRec's own modules send exact ones.

    But they do not leave out empty partial rows, nor sum parts of different sizes on gloo.
    """
    kinds = (kind.replace("backward", "forward"), kind.replace("forward", "backward"))
    if any(codec != Identity() for k in kinds for codec in codecs[k].values()):
        return True
    if not kind.startswith("intra"):
        return any(case.kind(table) == RW for table in case.tables) and not case.sequence
    size = case.node_size or num_ranks
    sums = {sum(map(case.batch_size, range(n, num_ranks, size))) for n in range(size)}
    return len(sums) > 1


def expected_stats(
    frames: dict[str, list[Frame]], codecs: dict[str, dict[str, Codec]]
) -> dict[str, tuple[int, dict[str, tuple[int, int]]]]:
    """Return header bytes and (distinct, wire) bytes of each table, by kind of traffic.

    Args: codecs: the codec of each kind and table
    """
    expected = {}
    for kind, sent in frames.items():
        tables: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for frame in sent:
            for table, num_rows, dim in frame:
                raw, wire = tables[table.name]
                nbytes = segment_nbytes(codecs[kind][table.name], num_rows, dim)
                tables[table.name] = raw + 4 * num_rows * dim, wire + nbytes
        header = sum(frame_header_nbytes(len(frame)) for frame in sent)
        expected[kind] = header, dict(tables)
    return expected


def stats_problems(
    case: Case, num_ranks: int, stats: dict, frames: dict[str, list[Frame]], hops: dict
) -> list[str]:
    """Say where QComm.stats() differs from the bytes that must be sent.

    Args: hops: the codecs of "forward" and "backward", then table
    """
    codecs: dict[str, dict[str, Codec]] = {}
    for direction, by_table in hops.items():
        codecs[f"embedding_{direction}"] = {name: hop.main for name, hop in by_table.items()}
        codecs[f"intra_embedding_{direction}"] = {n: hop.intra for n, hop in by_table.items()}
    problems = []
    for kind, sent_frames in frames.items():
        counted = stats[kind]
        if not all(codec.fixed_size for codec in codecs[kind].values()):
            problems += _row_problems(kind, counted, sent_frames)
            continue
        header, tables = expected_stats({kind: sent_frames}, codecs)[kind]
        if not _is_framed(case, kind, codecs, num_ranks):
            header = 0
        sent = {n: (t["distinct_nbytes"], t["wire_nbytes"]) for n, t in counted["tables"].items()}
        for name in sorted(tables.keys() | {n for n, nbytes in sent.items() if any(nbytes)}):
            if sent.get(name) != tables.get(name):
                problems.append(
                    f"{kind}, {name}: {sent.get(name)} distinct and wire bytes, "
                    f"not {tables.get(name)}"
                )
        if counted["header_nbytes"] != header:
            problems.append(f"{kind}: {counted['header_nbytes']} header bytes, not {header}")
        total = sum(wire for _, wire in tables.values()) + header
        if counted["wire_nbytes"] != total:
            problems.append(f"{kind}: {counted['wire_nbytes']} wire bytes, not {total}")
    return problems


def _row_problems(kind: str, counted: dict, sent: list[Frame]) -> list[str]:
    """Check sizes that depend on the data: distinct bytes, and that wire bytes add up."""
    rows: dict[str, int] = defaultdict(int)
    for frame in sent:
        for table, num_rows, dim in frame:
            rows[table.name] += 4 * num_rows * dim
    problems = []
    for name, counts in counted["tables"].items():
        if counts["distinct_nbytes"] != rows[name]:
            distinct = counts["distinct_nbytes"]
            problems.append(f"{kind}, {name}: {distinct} distinct bytes, not {rows[name]}")
        if (counts["wire_nbytes"] > 0) != (rows[name] > 0):
            problems.append(f"{kind}, {name}: {counts['wire_nbytes']} wire bytes of {rows[name]}")
    wire = (
        sum(counts["wire_nbytes"] for counts in counted["tables"].values())
        + counted["header_nbytes"]
    )
    if counted["wire_nbytes"] != wire:
        problems.append(f"{kind}: {counted['wire_nbytes']} wire bytes, its parts are {wire}")
    return problems
