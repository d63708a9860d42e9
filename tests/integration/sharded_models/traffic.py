"""The bytes that each rank of a Case must send, from the plan and FORMAT.md alone.

A frame is what a rank sends one peer in one exchange: segments of (table, rows, dim). Rank r of
node m is number l = r mod L in it, L ranks a node; a hop inside nodes goes to the others of node
m, a hop between nodes to number l of the others.
"""

from collections import defaultdict

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.integration.sharded_models.bounds import TWO_LEVEL, WHOLE_COLUMNS, Hops
from tests.integration.sharded_models.cases import RW, Case, Shard, Table, batch, shards
from trec_qcomm import Cast, Codec, Identity

Frame = list[tuple[Table, int, int]]
FORWARD, BACKWARD = "embedding_forward", "embedding_backward"


def frames_of(case: Case, rank: int, world_size: int) -> dict[str, list[Frame]]:
    """By kind of traffic all frames that the rank sends to others in one step."""
    found: dict[str, list[Frame]] = defaultdict(list)
    for sharding in dict.fromkeys(case.kind(table) for table in case.tables):
        tables = [table for table in case.tables if case.kind(table) == sharding]
        parts = [(t, s) for t in tables for s in shards(case, t, world_size) for _ in t.features]
        if sharding in TWO_LEVEL:
            _two_levels(case, parts, rank, world_size, found)
        elif sharding == RW and not case.sequence:
            _row_wise(case, parts, rank, world_size, found)
        elif case.sequence:
            _sequence(case, tables, rank, world_size, found)
        elif sharding in WHOLE_COLUMNS:
            _whole_columns(case, parts, rank, world_size, found)
    return {kind: [frame for frame in frames if frame] for kind, frames in found.items()}


def _whole_columns(case, parts, rank, world_size, found) -> None:
    """Owners send each peer its samples; samples' owners send gradients back."""
    for peer in _others(rank, world_size):
        mine, theirs = case.batch_size(rank), case.batch_size(peer)
        found[FORWARD].append([(t, theirs, s.num_cols) for t, s in parts if s.rank == rank])
        found[BACKWARD].append([(t, mine, s.num_cols) for t, s in parts if s.rank == peer])


def _row_wise(case, parts, rank, world_size, found) -> None:
    """Partial sums of the bags that have an id in the rank's rows, and their gradients back."""
    parts = [
        (t, s, f)
        for t in dict.fromkeys(t for t, _ in parts)
        for s in shards(case, t, world_size)
        for f in t.features
    ]
    batches = [batch(case, 0, r) for r in range(world_size)]
    for peer in _others(rank, world_size):
        found[FORWARD].append(
            [(t, _num_bags(batches[peer], f, s), s.num_cols) for t, s, f in parts if s.rank == rank]
        )
        found[BACKWARD].append(
            [(t, _num_bags(batches[rank], f, s), s.num_cols) for t, s, f in parts if s.rank == peer]
        )


def _two_levels(case, parts, rank, world_size, found) -> None:
    """Inside the node partial sums of all samples of the ranks of one number, of all nodes; between
    nodes the sums of one rank's samples."""
    size = case.node_size or world_size
    node, number = divmod(rank, size)
    own = [(t, s.num_cols) for t, s in parts if s.rank == rank]
    of_number = [sum(case.batch_size(r) for r in range(n, world_size, size)) for n in range(size)]
    for peer in _others(number, size):
        found[f"intra_{FORWARD}"].append([(t, of_number[peer], dim) for t, dim in own])
        found[f"intra_{BACKWARD}"].append([(t, of_number[number], dim) for t, dim in own])
    for peer in range(number, world_size, size):
        if peer // size != node:
            mine, theirs = case.batch_size(rank), case.batch_size(peer)
            found[FORWARD].append([(t, theirs, dim) for t, dim in own])
            found[BACKWARD].append([(t, mine, s.num_cols) for t, s in parts if s.rank == peer])


def _sequence(case, tables, rank, world_size, found) -> None:
    """One row for each id, from the owner of the row to that of the sample."""
    parts = [(t, s, f) for t in tables for s in shards(case, t, world_size) for f in t.features]
    batches = [batch(case, 0, r) for r in range(world_size)]
    for peer in _others(rank, world_size):
        asked = [
            (t, _num_ids(batches[peer], f, s), s.num_cols) for t, s, f in parts if s.rank == rank
        ]
        asking = [
            (t, _num_ids(batches[rank], f, s), s.num_cols) for t, s, f in parts if s.rank == peer
        ]
        found[FORWARD].append(asked)
        found[BACKWARD].append(asking)


def _num_ids(features: KeyedJaggedTensor, feature: str, shard: Shard) -> int:
    ids = features[feature].values()
    return int(((ids >= shard.row) & (ids < shard.row + shard.num_rows)).sum())


def _num_bags(features: KeyedJaggedTensor, feature: str, shard: Shard) -> int:
    """Of those that have an id in the shard's rows."""
    of = features[feature]
    bags = of.values().split(of.lengths().tolist())
    return sum(
        bool(((ids >= shard.row) & (ids < shard.row + shard.num_rows)).any()) for ids in bags
    )


def _others(rank: int, size: int) -> list[int]:
    return [r for r in range(size) if r != rank]


def segment_nbytes(codec: Codec, num_rows: int, dim: int) -> int:
    """FORMAT.md, "Segment"."""
    if codec == Identity():
        nbytes = 4 * num_rows * dim
    elif isinstance(codec, Cast):
        nbytes = 2 * num_rows * dim
    else:
        nbytes = 8 + num_rows * (4 + -(-codec.bits * dim // 8))
    return -(-nbytes // 8) * 8


def frame_header_nbytes(num_segments: int) -> int:
    """FORMAT.md, "Frame"."""
    return -(-(32 + 12 * num_segments) // 8) * 8


def expected_stats(
    frames: dict[str, list[Frame]], codecs: dict[str, dict[str, Codec]]
) -> dict[str, tuple[int, dict[str, tuple[int, int]]]]:
    """By kind: header bytes and (raw, wire) bytes of each table.

    Args: codecs: by kind, then table.
    """
    found = {}
    for kind, sent in frames.items():
        tables: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for frame in sent:
            for table, num_rows, dim in frame:
                raw, wire = tables[table.name]
                nbytes = segment_nbytes(codecs[kind][table.name], num_rows, dim)
                tables[table.name] = raw + 4 * num_rows * dim, wire + nbytes
        header = sum(frame_header_nbytes(len(frame)) for frame in sent)
        found[kind] = header, dict(tables)
    return found


def stats_problems(
    stats: dict, frames: dict[str, list[Frame]], hops: dict[str, dict[str, Hops]]
) -> list[str]:
    """What differs between QComm.stats() and the bytes that must be sent.

    Args: hops: by "forward" and "backward", then table.
    """
    codecs: dict[str, dict[str, Codec]] = {}
    for direction, by_table in hops.items():
        codecs[f"embedding_{direction}"] = {name: hop.main for name, hop in by_table.items()}
        codecs[f"intra_embedding_{direction}"] = {n: hop.intra for n, hop in by_table.items()}
    found = []
    for kind, sent_frames in frames.items():
        counted = stats[kind]
        if not all(codec.fixed_size for codec in codecs[kind].values()):
            found += _row_problems(kind, counted, sent_frames)
            continue
        header, tables = expected_stats({kind: sent_frames}, codecs)[kind]
        sent = {n: (t["raw_nbytes"], t["wire_nbytes"]) for n, t in counted["tables"].items()}
        for name in sorted(tables.keys() | {n for n, nbytes in sent.items() if any(nbytes)}):
            if sent.get(name) != tables.get(name):
                found.append(
                    f"{kind}, {name}: {sent.get(name)} raw and wire bytes, not {tables.get(name)}"
                )
        if counted["header_nbytes"] != header:
            found.append(f"{kind}: {counted['header_nbytes']} header bytes, not {header}")
        total = sum(wire for _, wire in tables.values()) + header
        if counted["wire_nbytes"] != total:
            found.append(f"{kind}: {counted['wire_nbytes']} wire bytes, not {total}")
    return found


def _row_problems(kind: str, counted: dict, sent: list[Frame]) -> list[str]:
    """Where sizes depend on the data: that of the rows as float32, and that the rest adds up."""
    rows: dict[str, int] = defaultdict(int)
    for frame in sent:
        for table, num_rows, dim in frame:
            rows[table.name] += 4 * num_rows * dim
    found = []
    for name, of in counted["tables"].items():
        if of["raw_nbytes"] != rows[name]:
            found.append(f"{kind}, {name}: {of['raw_nbytes']} raw bytes, not {rows[name]}")
        if (of["wire_nbytes"] > 0) != (rows[name] > 0):
            found.append(f"{kind}, {name}: {of['wire_nbytes']} wire bytes of {rows[name]}")
    wire = sum(of["wire_nbytes"] for of in counted["tables"].values()) + counted["header_nbytes"]
    if counted["wire_nbytes"] != wire:
        found.append(f"{kind}: {counted['wire_nbytes']} wire bytes, its parts are {wire}")
    return found
