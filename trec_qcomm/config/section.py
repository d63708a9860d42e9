"""Section: a part of a config that an extension brings.

The core knows the section's name, and the module that has its class. It imports this module when a
config has the section, and then calls the methods of Section. So `import trec_qcomm` reaches no
extension.

Knows: names of modules. Does not know: what any section means.
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from trec_qcomm.core.codec import Codec
from trec_qcomm.core.fields import read


@dataclass(frozen=True)
class At:
    """Place of a section's class. The module is imported when a config has the section.

        guard: Annotated[Section, At("trec_qcomm.lab.guard.rule:GuardRule")] | None = None

    Args: place: "module:Class".
    """

    place: str

    def section_type(self) -> type["Section"]:
        """Return the class."""
        module, _, name = self.place.partition(":")
        kind: type[Section] = getattr(importlib.import_module(module), name)
        return kind

    def __call__(self, data: object, where: str) -> Any:
        """Return the section that a config has at a place; `core.fields.read` calls this."""
        return read(self.section_type(), data, where)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Base of the settings of an extension. A subclass is a frozen dataclass, as all settings are.

    Attributes:
        kinds: {name: class}, if the section is one of several classes. A file says by the key
            `kind` which one it is. Else empty.
        name: name of the class among `kinds`.
    """

    kinds: ClassVar[Mapping[str, type["Section"]]] = {}
    name: ClassVar[str] = ""

    def in_short(self) -> str:
        """Return the settings in a few words, for `repr(qcomm)`."""
        return repr(self)

    def check(self, owner: Any) -> None:
        """Raise ValueError if the section does not fit the settings that have it.

        Args: owner: the Config, or the rule, that has the section.
        """

    def codecs(self) -> Iterator[Codec]:
        """Yield the codecs that the extension itself uses, so that their kernels are compiled."""
        yield from ()

    def dense_rules(self) -> Iterator[Any]:
        """Yield rules (GradientRule) that the extension may give the replicated part later."""
        yield from ()

    def codecs_of_table(self, rule: Any) -> Iterator[tuple[str, Codec]]:
        """Yield (direction, codec) for each codec that the extension may give a table later.

        Args: rule: the TableRule that holds for the table.
        """
        yield from ()

    def extension(self, session: Any) -> Any:
        """Return what the section adds to a session (integration.extension), or None."""
        return None

    def debugger_of_ddp(self, config: Any) -> Any:
        """Return an object that measures the gradients of a DDP outside TorchRec, or None.

        The object has `add_gradients("dense", gradients)` and `summary()`.

        Args: config: the Config that has the section.
        Raises: ValueError: codecs that do not take blocks of the config's rules.
        """
        return None

    def gradient_tolerances(self, rules: Any, chunks: Any, sites: Any) -> Any:
        """Return what sets the tolerances of all parameters on one rank, or None.

        This is for a section of a rule of gradients. Returns a comm.dense.coder.GradientTolerances.

        Args:
            rules: all rules, whose numbers are the parameters' `coding`.
            chunks: chunks of all parameters, as if in one bucket (comm.dense.chunks.BucketChunks).
            sites: the places where the algorithm encodes on this rank.
        """
        return None

    def table_tolerance(self) -> Any:
        """Return what sets the tolerance of one table's forward codec in each step, or None.

        This is for a section of a table's rule. Returns an
        integration.tolerances.TableTolerance.
        """
        return None

    def row_transform(self, config: Any, groups: Any, merging: Any) -> Any:
        """Return what changes the rows of one sharding before they are encoded, or None.

        This is for a section of a table's rule. Returns an
        integration.embedding.shardings.ShardingTransform.

        Args:
            config: the Config.
            groups: tables of each rank, grouped as TorchRec looks them up.
            merging: the sharding's merging of equal bags (integration.ids.bag_merging.BagMerging).
        """
        return None


def check_sections(owner: Any) -> None:
    """Raise ValueError at a section that does not fit the config or rule that has it."""
    for section in sections_of(owner).values():
        section.check(owner)


def sections_of(owner: Any) -> dict[str, Section]:
    """Return the sections of a config or rule, {name: section}."""
    given = {known.name: getattr(owner, known.name) for known in fields(owner)}
    return {name: value for name, value in given.items() if isinstance(value, Section)}
