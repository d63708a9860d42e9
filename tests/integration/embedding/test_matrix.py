"""The matrix: every sharding x codec x shape x direction, checked cell by cell.

One step of SGD on a loss that is linear in the outputs, so that gradients are no function of what
the forward codec did. A cell passes if, with respect to a run with the identity codec,
- a coded direction moves outputs (weights) of every coded table by no more than the codec's own
  error, derived in bounds.py, and somewhere by a quarter of it: no silent float32 or finer codec;
- a direction, or a table, that is not coded is bit-equal;
- QComm.stats() counts exactly the bytes that FORMAT.md gives for the plan (traffic.py); where they
  depend on the data, the rows.
"""

import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

from tests.integration.sharded_models.batches import batch
from tests.integration.sharded_models.bounds import Hops, backward_error, forward_error
from tests.integration.sharded_models.cases import (
    CW,
    GRID,
    MIX,
    RW,
    TW,
    TWCW,
    TWRW,
    Case,
    Table,
    output_keys,
)
from tests.integration.sharded_models.expected import assembled, incidence
from tests.integration.sharded_models.expected_traffic import frames_of, stats_problems
from tests.integration.sharded_models.training import run
from tests.rank_programs import Failed, run_programs
from trec_qcomm import Cast, Config, ErrorBounded, Identity, QComm, Rowwise, TableRule
from trec_qcomm.config import HopCodecs

pytestmark = pytest.mark.timeout(900)  # the ranks' own limit comes first

WORLD_SIZES = (2, 4)
# name: (sharding, module, hops that are coded, nodes)
ROWS = {
    "table_wise": (TW, "ebc", "main", 1),
    "column_wise": (CW, "ebc", "main", 1),
    "table_column_wise": (TWCW, "ebc", "main", 2),
    "row_wise": (RW, "ebc", "main", 1),
    "table_row_wise, between nodes": (TWRW, "ebc", "main", 2),
    "table_row_wise, inside nodes": (TWRW, "ebc", "intra", 0),
    "grid_shard, between nodes": (GRID, "ebc", "main", 2),
    "grid_shard, inside nodes": (GRID, "ebc", "intra", 0),
    "all mixed": (MIX, "ebc", "both", 2),
    "sequence table_wise": (TW, "ec", "main", 1),
    "sequence column_wise": (CW, "ec", "main", 1),
    "sequence row_wise": (RW, "ec", "main", 1),
}
SHAPES = {2: ("uneven",), 4: ("aligned", "odd", "uneven")}  # by world size
MIXED = (Rowwise(4, "stochastic"), Identity(), Cast("bf16"), Rowwise(8))
CODECS = {
    "bf16": (Cast("bf16"),),
    "8 bits": (Rowwise(8),),
    "4 bits": (Rowwise(4),),
    "2 bits": (Rowwise(2),),
    "error bounded": (ErrorBounded(2.0**-4, mode="abs"),),
    "mixed": MIXED,
}
DIRECTIONS = ("forward", "backward", "both")
FEATURES = (("a",), ("b", "c"), ("a",), ("d",), ("e",), ("f",), ("g",))


@dataclass(frozen=True)
class Cell:
    """Cell of the matrix. codec and direction are None in the run it is compared with."""

    row: str
    shape: str
    codec: str | None = None
    direction: str | None = None


def case_of(cell: Cell, world_size: int) -> Case:
    sharding, module, _, nodes = ROWS[cell.row]
    sequence = module == "ec"
    dims = (16, 32, 16, 32, 16, 32, 32) if cell.shape == "aligned" else (12, 20, 36, 52, 12, 20, 36)
    if sequence:
        dims = ({"aligned": 32, "odd": 36, "uneven": 12}[cell.shape],) * 7
    # A rank that has no samples is beyond TorchRec's EmbeddingCollection.
    uneven = (7, 3, 1, 8) if sequence else (7, 0, 3, 8)
    sizes = {"aligned": (8,), "odd": (7,), "uneven": uneven[:world_size]}
    count = 7 if sharding == MIX else 4
    return Case(
        tables=tuple(Table(f"t{n}", dims[n], FEATURES[n], 20 + n) for n in range(count)),
        sharding=sharding,
        module=module,
        node_size=world_size // nodes if nodes else 2,
        batch=sizes[cell.shape],
        max_length=3,
    )


def hops_of(cell: Cell, case: Case) -> dict[str, dict[str, Hops]]:
    """Return the codecs of each hop by direction, then table."""
    coded = ROWS[cell.row][2]
    codecs = CODECS[cell.codec] if cell.codec else (Identity(),)
    hops: dict[str, dict[str, Hops]] = {"forward": {}, "backward": {}}
    for direction, by_table in hops.items():
        for n, table in enumerate(case.tables):
            on = cell.direction in (direction, "both")
            codec = codecs[n % len(codecs)] if on else Identity()
            by_table[table.name] = Hops(
                main=codec if coded in ("main", "both") else Identity(),
                intra=codec if coded in ("intra", "both") else Identity(),
            )
    return hops


def qcomm_of(cell: Cell, case: Case) -> QComm:
    hops = hops_of(cell, case)
    forward, backward = hops["forward"], hops["backward"]
    rules = [
        TableRule(
            tables=(name,),
            forward=forward[name].main,
            backward=backward[name].main,
            intra=HopCodecs(forward=forward[name].intra, backward=backward[name].intra),
        )
        for name in forward
    ]
    return QComm(Config(embedding=tuple(rules)))


def run_cell(argument: tuple[Cell, int]):
    cell, world_size = argument
    case = case_of(cell, world_size)
    return run(case, qcomm_of(cell, case), 1, linear=True)


def plain_cells(world_size: int) -> list[Cell]:
    return [Cell(row, shape) for row in ROWS for shape in SHAPES[world_size]]


def coded_cells(world_size: int) -> list[Cell]:
    """Return the cells: every pair of a row and a codec, in one direction on two ranks and in
    another one on four, where every pair of a row, a codec, a shape and a direction is there.
    """
    cells = [
        Cell(plain.row, plain.shape, codec, direction)
        for plain in plain_cells(world_size)
        for codec in CODECS
        for direction in DIRECTIONS
    ]
    return [cell for cell in cells if (_on_diagonal if world_size == 2 else _in_square)(cell)]


def _on_diagonal(cell: Cell) -> bool:
    """Return whether the cell has the direction of its row and codec on two ranks."""
    row, codec = list(ROWS).index(cell.row), list(CODECS).index(cell.codec)
    return DIRECTIONS[(row + 2 * codec + 1) % 3] == cell.direction


def _in_square(cell: Cell) -> bool:
    """Return whether the Latin squares of rows and codecs have this cell's shape and direction."""
    row, codec = list(ROWS).index(cell.row), list(CODECS).index(cell.codec)
    shape = (row + codec) % 3
    return (SHAPES[4][shape], DIRECTIONS[(codec + shape) % 3]) == (cell.shape, cell.direction)


@cache
def batches_of(case: Case, world_size: int) -> tuple:
    return tuple(batch(case, 0, rank) for rank in range(world_size))


@cache
def output_bounds(case: Case, world_size: int, rank: int, key: str, hops: Hops):
    features = batches_of(case, world_size)[rank]
    for other, table, feature in output_keys(case):
        if other == key:
            matrix = incidence(case, table, feature, features)
            return forward_error(case, table, matrix, hops, world_size)
    raise KeyError(key)


@cache
def weight_bounds(case: Case, world_size: int, table: Table, hops: Hops):
    return backward_error(case, table, batches_of(case, world_size), hops)


def problems(cell: Cell, coded: list, plain: list) -> list[str]:
    """Say what is wrong with a cell.

    Args: coded, plain: each rank's result with the cell's codecs, and with identity
    """
    case = case_of(cell, len(coded))
    hops = hops_of(cell, case)
    wrong = _output_problems(case, hops["forward"], coded, plain)
    wrong += _weight_problems(case, hops["backward"], coded, plain)
    for rank, result in enumerate(coded):
        frames = frames_of(case, rank, len(coded))
        told = stats_problems(case, len(coded), result.stats, frames, hops)
        wrong += [f"rank {rank}: {text}" for text in told]
    return wrong


def _output_problems(case: Case, hops: dict[str, Hops], coded: list, plain: list) -> list[str]:
    moved = {table: Moved() for table in case.tables}
    for key, table, _ in output_keys(case):
        for rank, (ours, theirs) in enumerate(zip(coded, plain, strict=True)):
            bound = output_bounds(case, len(coded), rank, key, hops[table.name])
            moved[table].add(ours.outputs[0][key], theirs.outputs[0][key], bound)
    return _verdicts("outputs", case, hops, moved)


def _weight_problems(case: Case, hops: dict[str, Hops], coded: list, plain: list) -> list[str]:
    moved = {table: Moved() for table in case.tables}
    for table in case.tables:
        ours, theirs = (
            assembled(table, [part for result in runs for part in result.weights[table.name]])
            for runs in (coded, plain)
        )
        moved[table].add(ours, theirs, weight_bounds(case, len(coded), table, hops[table.name]))
    return _verdicts("weights", case, hops, moved)


@dataclass
class Moved:
    """Distance of values from another run's: as a share of the bound, and whether there is any."""

    share: float = 0.0
    equal: bool = True

    def add(self, coded: Tensor, exact: Tensor, bound: Tensor) -> None:
        off = (coded.double() - exact.double()).abs()
        shares = torch.where(off == 0, 0.0, off / bound).nan_to_num(nan=math.inf)
        self.share = max([self.share, *shares.flatten().tolist()])
        self.equal &= torch.equal(coded, exact)


def _verdicts(what: str, case: Case, hops: dict[str, Hops], moved: dict[Table, Moved]) -> list[str]:
    wrong = []
    for table, differences in moved.items():
        coded = hops[table.name].changes(case.kind(table))
        if coded and not 0.25 <= differences.share <= 1:
            wrong.append(
                f"{what} of {table.name}: off by {differences.share:.3g} of the codec's error"
            )
        if not coded and not differences.equal:
            wrong.append(f"{what} of {table.name}: not coded, but differ")
    return wrong


@pytest.fixture(scope="module")
def verdicts_of():
    """Return a function from world size to the problems of each cell; it runs them once."""

    @cache
    def judged(world_size: int) -> dict[Cell, list[str]]:
        coded = coded_cells(world_size)
        cells = {cell: (cell, world_size) for cell in plain_cells(world_size) + coded}
        results = run_programs(run_cell, world_size, cells, timeout_s=600)
        problems_of = {}
        for cell in coded:
            plain = results[Cell(cell.row, cell.shape)]
            failed = [run.reason for run in (plain, results[cell]) if isinstance(run, Failed)]
            problems_of[cell] = failed or problems(cell, results[cell], plain)
        return problems_of

    return judged


def name_of(cell: Cell) -> str:
    return f"{cell.row}/{cell.shape}/{cell.codec}/{cell.direction}".replace(" ", "_")


@pytest.mark.dist
@pytest.mark.parametrize(
    ("world_size", "cell"),
    [
        pytest.param(world_size, cell, id=f"{world_size}-{name_of(cell)}")
        for world_size in WORLD_SIZES
        for cell in coded_cells(world_size)
    ],
)
def test_every_cell(verdicts_of, world_size, cell):
    assert not verdicts_of(world_size)[cell]
