"""CurrentRules: the rules of tables whose codecs were changed while training.

Knows: rules of the config. Does not know: why codecs change, collectives, TorchRec.
"""

from collections.abc import Mapping
from dataclasses import replace

from trec_qcomm.codecs import Identity
from trec_qcomm.config import Config, HopCodecs, TableRule
from trec_qcomm.config.tables import DIRECTIONS, Direction
from trec_qcomm.core.codec import Codec, Contract

CodecChanges = Mapping[str, Mapping[Direction, Codec]]  # by table


class CurrentRules:
    """Rules by which tables are coded now: the config's rules, with changes of codecs.

    Args: config: settings that hold where nothing was changed.
    Attributes: changes: codecs that replace the config's codecs.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self.changes: CodecChanges = {}

    def rule_for(self, table: str) -> TableRule:
        """Return the rule that holds for a table now. Raises ValueError if no rule matches."""
        configured = self._config.rule_for(table)
        changes = self.changes.get(table)
        return changed_rule(configured, changes) if changes else configured

    def change(self, changes: CodecChanges) -> None:
        """Change codecs of some tables, until the next change.

        Raises: ValueError: an unknown direction, or codecs that no rule may have. Then nothing is
            changed.
        """
        updated = dict(self.changes)
        for table, codecs in changes.items():
            unknown = sorted(set(codecs) - set(DIRECTIONS))
            if unknown:
                raise ValueError(f"table {table!r}: {unknown[0]!r} is none of {DIRECTIONS}")
            updated[table] = {**updated.get(table, {}), **codecs}
            try:
                changed_rule(self._config.rule_for(table), updated[table])
            except ValueError as error:
                raise ValueError(f"table {table!r}: {error}") from error
        self.changes = updated


def changed_rule(configured: TableRule, codecs: Mapping[Direction, Codec]) -> TableRule:
    """Return a rule with other codecs, and with the other settings that still fit.

    - `schedule`, `classes` and `refresh` set the tolerance of the configured forward codec, and
      hold only for this codec.
    - The hop inside a node keeps its codecs, but becomes exact if the rule's codecs become exact.

    Args: codecs: {"forward" or "backward": codec}.
    Raises: ValueError: codecs that do not fit each other.
    """
    forward = codecs.get("forward", configured.forward)
    backward = codecs.get("backward", configured.backward)
    is_configured = forward == configured.forward
    pairs = {"forward": (configured.forward, forward), "backward": (configured.backward, backward)}
    became_exact = {d for d, (old, new) in pairs.items() if new != old and _is_exact(new)}
    intra = _exact_hop(configured.intra, became_exact)
    return replace(
        configured,
        forward=forward,
        backward=backward,
        intra=intra,
        schedule=configured.schedule if is_configured else None,
        classes=configured.classes if is_configured else None,
        refresh=configured.refresh if is_configured else None,
    )


def _exact_hop(hop: HopCodecs, directions: set[str]) -> HopCodecs:
    if "forward" in directions and hop.backward.follows_forward:
        return HopCodecs()
    return replace(hop, **dict.fromkeys(directions, Identity()))


def _is_exact(codec: Codec) -> bool:
    return codec.contract is Contract.EXACT
