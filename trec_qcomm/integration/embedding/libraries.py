"""Coded shardings in the place of those that a library made by extending TorchRec's.

A library such as dynamicemb extends a sharding (other lookups, other buckets of ids), the sharded
module that makes it, and the sharder that makes the module. Each of ours is extended beside it:
docs/LIBRARIES.md has the lines. Here is what keeps that from going wrong without a word: a
sharding of the library's that is not coded, or a coded one without the library's part.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from trec_qcomm.integration.compat import EmbeddingSharding, ParameterSharding, ShardingType

Shardings = Mapping[str, type[Any]]


def overrides(module: type[Any], method: str, after: type[Any]) -> bool:
    """Return whether a class between `after` and TorchRec's own, in the order of bases, has it.

    Args:
        module: a class that extends `after`
        method: name of a method that TorchRec's class has
        after: our class, which calls the next one's method by `super`
    """
    bases = module.__mro__[module.__mro__.index(after) + 1 :]
    first = next(base for base in bases if method in vars(base))
    return not first.__module__.startswith("torchrec.")


def check_order(cls: type[Any], ours: type[Any], method: str) -> None:
    """Raise TypeError where a base that is not ours hides a method that codes.

    Args:
        cls: a class that extends `ours` and a library's class
        ours: our class, which must come first
        method: name of the method
    """
    for base in cls.__mro__[: cls.__mro__.index(ours)]:
        if method in vars(base) and not issubclass(base, ours):
            raise TypeError(
                f"{cls.__name__}: {base.__name__} comes before {ours.__name__} and its {method} "
                "codes nothing; name the class of trec_qcomm first"
            )


def coded_sharding(
    module: type[Any],
    kind: str,
    ours: Shardings,
    theirs: Callable[[], EmbeddingSharding[Any, Any, Any, Any]] | None,
) -> type[Any] | None:
    """Return the class of the coded sharding that a module makes; None: no rows are sent.

    Args:
        module: class of the sharded module; its `coded_shardings` come before `ours`
        kind: sharding type
        ours: coded classes by sharding type, which extend TorchRec's
        theirs: maker of the library's sharding; None where the module is TorchRec's
    Raises: ValueError: a library's sharding that no coded class extends.
    """
    coded: type[Any] | None = {**ours, **module.coded_shardings}.get(kind)
    if theirs is None:
        return coded
    expected = type(theirs())
    if coded is None and kind == ShardingType.DATA_PARALLEL.value:
        return None
    if (
        coded is None
        or not issubclass(coded, expected)
        or not issubclass(coded, tuple(ours.values()))
    ):
        raise ValueError(
            f"{module.__name__}.coded_shardings[{kind!r}]: {coded and coded.__name__}: expected a "
            f"class that extends a coded sharding and {expected.__name__}, which the module makes"
        )
    return coded


class ExtensibleSharder:
    """Mixin of our sharders for what a library changes about the modules that they make.

    Class attributes:
        sharded_class: class of the modules
        merges_bags: whether equal bags and ids may be sent once, which a lookup that counts its ids
            forbids; None: where `sharded_class` is ours
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_order(cls, ExtensibleSharder, "shard")

    sharded_class: ClassVar[type[Any]]
    merges_bags: ClassVar[bool | None] = None

    def module_options(self, params: dict[str, ParameterSharding]) -> dict[str, Any]:
        """Return what else the constructor of `sharded_class` takes. Args: params: its plan."""
        return {}

    @property
    def sharded_module_type(self) -> type[Any]:
        """Class of the sharded module, by which TorchRec looks up sharders."""
        return self.sharded_class

    @property
    def _may_merge(self) -> bool:
        is_ours = self.sharded_class.__module__.startswith("trec_qcomm.")
        return is_ours if self.merges_bags is None else self.merges_bags
