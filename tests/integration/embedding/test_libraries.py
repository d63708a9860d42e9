"""Shardings of a library that extends TorchRec's are coded as docs/LIBRARIES.md says."""

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.integration.embedding import round_robin
from tests.integration.sharded_models import training
from tests.integration.sharded_models.cases import RW, Case, Table
from tests.rank_programs import results_of, run_programs
from trec_qcomm import Identity, QComm, Rowwise
from trec_qcomm.integration.embedding.bags import (
    CodedEmbeddingBagCollectionSharder,
    CodedShardedEmbeddingBagCollection,
)
from trec_qcomm.integration.embedding.sequences import (
    CodedEmbeddingCollectionSharder,
    CodedRwSequenceEmbeddingSharding,
    CodedShardedEmbeddingCollection,
)

DOCUMENT = Path(__file__).parents[3] / "trec_qcomm" / "docs" / "LIBRARIES.md"
TABLES = (Table("a", 8, ("f1",)), Table("b", 8, ("f2", "f3")), Table("c", 8, ("f4",)))
MIXED = "sequence_mix"  # table-wise, row-wise, column-wise


def bag_sharder() -> type:
    """Return the sharder that the document makes."""
    code = DOCUMENT.read_text().split("```python\n")[1].split("```")[0]
    classes = code.replace("from library", "from tests.integration.embedding.round_robin")
    names: dict[str, object] = {"__name__": "the_document"}
    exec(classes.split("arguments =")[0], names)
    return names["CodedBagSharder"]


class CodedSequenceSharding(
    CodedRwSequenceEmbeddingSharding, round_robin.RoundRobinSequenceSharding
):
    """Row-wise sharding of the library, coded."""


class CodedSequences(CodedShardedEmbeddingCollection, round_robin.ShardedRoundRobinSequences):
    """Module of the library, coded."""

    coded_shardings = {"row_wise": CodedSequenceSharding}  # noqa: RUF012


class CodedSequenceSharder(CodedEmbeddingCollectionSharder, round_robin.RoundRobinSequenceSharder):
    """Sharder of the library, coded."""

    sharded_class = CodedSequences

    def module_options(self, params):
        return {"label": "+".join(params)}


class Forgotten(CodedShardedEmbeddingBagCollection, round_robin.ShardedRoundRobinBags):
    """Module whose row-wise sharding would be TorchRec's."""


class ForgetfulSharder(CodedEmbeddingBagCollectionSharder, round_robin.RoundRobinBagSharder):
    """Sharder of it."""

    sharded_class = Forgotten


class Plain(CodedShardedEmbeddingCollection, round_robin.ShardedRoundRobinSequences):
    """Module that names the library's own sharding, which codes nothing."""

    coded_shardings = {"row_wise": round_robin.RoundRobinSequenceSharding}  # noqa: RUF012


class PlainSharder(CodedSequenceSharder):
    """Sharder of it."""

    sharded_class = Plain


class MergingSharder(CodedSequenceSharder):
    """Sharder that promises what the library's module does not do."""

    merges_bags = True


def train(how):
    """Return rows and weights of a training, how many ids were looked up, and stats."""
    case, codec, kind, options = how
    round_robin.num_looked_up.zero_()
    qcomm = None if codec is None else training.qcomm_of(codec)
    if options:
        rule = dataclasses.replace(qcomm.config.embedding[0], **options)
        qcomm = QComm(dataclasses.replace(qcomm.config, embedding=(rule,)))
    fused = training.fused_params(case)
    if kind is None:
        kind = bag_sharder()
    if qcomm is None:
        sharders = [kind(fused_params=fused)]
    else:
        sharders = qcomm.sharders(fused_params=fused, subclasses=[kind])
    dmp = training.shard_by(case, sharders=sharders)
    outputs = training.train(dmp, case, 3, linear=False)
    stats = None if qcomm is None else qcomm.stats()
    return outputs, training.weights(dmp, case), int(round_robin.num_looked_up), stats


CASES = {
    f"{module}/{sharding}": Case(tables=TABLES, sharding=sharding, module=module)
    for module in ("ebc", "ec")
    for sharding in (RW, MIXED)
}
THEIRS = {
    "ebc": round_robin.RoundRobinBagSharder,
    "ec": round_robin.RoundRobinSequenceSharder,
}
OURS = {"ebc": None, "ec": CodedSequenceSharder}  # None: that of the document


@pytest.fixture(scope="module")
def ranks():
    programs = {}
    for name, case in CASES.items():
        theirs, ours = THEIRS[case.module], OURS[case.module]
        programs[name, "library"] = (case, None, theirs, {})
        programs[name, "identity"] = (case, Identity(), ours, {"unique_bags": "auto"})
        if case.sharding == RW:
            programs[name, "int8"] = (case, Rowwise(8), ours, {})
            programs[name, "merged"] = (case, Identity(), ours, {"unique_bags": True})
    case = CASES[f"ebc/{RW}"]
    programs["forgotten"] = (case, Identity(), ForgetfulSharder, {})
    case = CASES[f"ec/{RW}"]
    programs["plain"] = (case, Identity(), PlainSharder, {})
    programs["merging"] = (case, Identity(), MergingSharder, {"unique_bags": True})
    return run_programs(train, 2, programs)


def are_equal(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(are_equal, one, other))
    return one == other


@pytest.mark.dist
@pytest.mark.parametrize("name", CASES)
def test_identity_equals_the_library_bit_for_bit(ranks, name):
    pairs = zip(
        results_of(ranks[name, "library"]), results_of(ranks[name, "identity"]), strict=True
    )
    for theirs, ours in pairs:
        assert theirs[2] > 0  # its lookups ran, and each id was looked up
        assert are_equal(theirs[:3], ours[:3])
        assert ours[3].embedding_forward.raw_nbytes > 0


@pytest.mark.dist
@pytest.mark.parametrize("module", ["ebc", "ec"])
def test_rows_and_gradients_are_coded(ranks, module):
    theirs = results_of(ranks[f"{module}/{RW}", "library"])
    for plain, (outputs, _, num_ids, stats) in zip(
        theirs, results_of(ranks[f"{module}/{RW}", "int8"]), strict=True
    ):
        assert num_ids == plain[2]
        assert not are_equal(plain[0], outputs)
        for key, rows in outputs[0].items():
            error = (rows - plain[0][0][key]).abs().max()
            assert error <= 0.02 * rows.abs().max(), key
        for traffic in (stats.embedding_forward, stats.embedding_backward):
            assert 0 < traffic.wire_nbytes - traffic.header_nbytes < traffic.raw_nbytes


@pytest.mark.dist
@pytest.mark.parametrize("module", ["ebc", "ec"])
def test_merging_is_refused_where_lookups_may_count_ids(ranks, module):
    assert (
        "its module does more with ids than look them up"
        in ranks[f"{module}/{RW}", "merged"].reason
    )


@pytest.mark.dist
def test_a_sharding_of_the_librarys_that_is_not_coded_is_refused(ranks):
    reason = ranks["forgotten"].reason
    assert (
        "Forgotten.coded_shardings['row_wise']: CodedRwPooledEmbeddingSharding: expected" in reason
    )
    assert "and RoundRobinBagSharding, which the module makes" in reason


@pytest.mark.parametrize(
    "bases",
    [
        (round_robin.ShardedRoundRobinBags, CodedShardedEmbeddingBagCollection),
        (round_robin.ShardedRoundRobinSequences, CodedShardedEmbeddingCollection),
        (round_robin.RoundRobinBagSharder, CodedEmbeddingBagCollectionSharder),
        (round_robin.CodesItself, CodedRwSequenceEmbeddingSharding),
    ],
)
def test_bases_in_the_other_order_are_refused(bases):
    theirs, ours = bases
    type("Right", (ours, theirs), {})
    with pytest.raises(TypeError, match=f"Wrong: {theirs.__name__} comes before "):
        type("Wrong", bases, {})


@pytest.mark.dist
def test_a_plain_sharding_of_the_librarys_is_refused(ranks):
    reason = ranks["plain"].reason
    assert "Plain.coded_shardings['row_wise']: RoundRobinSequenceSharding: expected" in reason


@pytest.mark.dist
def test_merging_that_the_library_s_module_never_does_is_refused(ranks):
    assert "merges_bags: its input_dist does not call _dedup_indices" in ranks["merging"].reason
