"""Shardings of a library that extends TorchRec's are coded as docs/LIBRARIES.md says."""

import dataclasses
from pathlib import Path

import pytest

from tests.integration.embedding import round_robin
from tests.integration.sharded_models import training
from tests.integration.sharded_models.cases import RW, Case, Table
from tests.rank_programs import results_of, run_programs
from trec_qcomm import Identity, QComm, Rowwise
from trec_qcomm.integration.embedding.modules import (
    CodedEmbeddingBagCollectionSharder,
    CodedEmbeddingCollectionSharder,
    CodedShardedEmbeddingBagCollection,
    CodedShardedEmbeddingCollection,
)
from trec_qcomm.integration.embedding.shardings import CodedRwSequenceEmbeddingSharding

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


class MergingSharder(CodedSequenceSharder):
    """Sharder that promises what the library's module does not do."""

    merges_bags = True


def train(how):
    """Return the result of a training, and how many ids were looked up."""
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
    stats = {} if qcomm is None else qcomm.stats().to_dict()
    result = training.RankResult(outputs, training.weights(dmp, case), stats)
    return result, int(round_robin.num_looked_up)


CASES = {
    f"{module}/{sharding}": Case(tables=TABLES, sharding=sharding, module=module)
    for module in ("ebc", "ec")
    for sharding in (RW, MIXED)
}
THEIRS = {"ebc": round_robin.RoundRobinBagSharder, "ec": round_robin.RoundRobinSequenceSharder}
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
    programs["merging"] = (case, Identity(), MergingSharder, {"unique_bags": True})
    return run_programs(train, 2, programs)


@pytest.mark.dist
@pytest.mark.parametrize("name", CASES)
def test_identity_equals_the_library_bit_for_bit(ranks, name):
    (theirs, num_ids), (ours, num_ours) = (
        zip(*results_of(ranks[name, kind]), strict=True) for kind in ("library", "identity")
    )
    assert all(num_ids)  # its lookups ran
    assert num_ids == num_ours  # and each id was looked up
    training.assert_same(CASES[name], theirs, ours)
    assert all(result.stats["embedding_forward"]["raw_nbytes"] > 0 for result in ours)


@pytest.mark.dist
@pytest.mark.parametrize("module", ["ebc", "ec"])
def test_rows_and_gradients_are_coded(ranks, module):
    theirs, ours = (results_of(ranks[f"{module}/{RW}", kind]) for kind in ("library", "int8"))
    for (plain, expected_ids), (coded, num_ids) in zip(theirs, ours, strict=True):
        assert num_ids == expected_ids
        errors = []
        for key, rows in coded.outputs[0].items():
            errors.append(float((rows - plain.outputs[0][key]).abs().max()))
            assert errors[-1] <= 0.02 * rows.abs().max(), key
        assert any(errors)
        for kind in ("embedding_forward", "embedding_backward"):
            traffic = coded.stats[kind]
            payload = traffic["wire_nbytes"] - traffic["header_nbytes"]
            assert 0 < payload < traffic["raw_nbytes"]


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
def test_merging_that_the_library_s_module_never_does_is_refused(ranks):
    assert "merges_bags: its input_dist does not call _dedup_indices" in ranks["merging"].reason
