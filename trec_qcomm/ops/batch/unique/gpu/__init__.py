"""Distinct bags in Triton. Same results as reference.py."""

from trec_qcomm.ops.batch.unique.gpu.bag_rows import expand, sum_by_bag
from trec_qcomm.ops.batch.unique.gpu.distinct_bags import take_bags, unique_bags
from trec_qcomm.ops.batch.unique.gpu.id_order import sort_by_id

__all__ = ["expand", "sort_by_id", "sum_by_bag", "take_bags", "unique_bags"]
