"""Writing of a config: frozen dataclasses that hold codecs -> dicts that YAML can hold.

Knows: rules, codecs. Does not know: files, TorchRec, process groups.
"""

from dataclasses import asdict, fields
from typing import Any

from trec_qcomm.config.debugging import DebugRule
from trec_qcomm.config.gradients import AllReduceRule, GradientRule, LowRank
from trec_qcomm.config.guarding import GuardRule
from trec_qcomm.config.sync import SyncRule
from trec_qcomm.config.tables import HopCodecs, TableRule
from trec_qcomm.config.tree import Config
from trec_qcomm.control.cost_model import Link
from trec_qcomm.control.schedule import schedule_to_dict
from trec_qcomm.control.threshold import ThresholdRefresh
from trec_qcomm.core.codec import Codec


def config_to_dict(config: Config) -> dict[str, Any]:
    """Return the config as a dict that YAML can hold; `config_from_dict` undoes it."""
    data: dict[str, Any] = {}
    if config.embedding:
        data["embedding"] = [_rule_to_dict(rule) for rule in config.embedding]
    if config.dense is not None:
        rules = [gradient_rule_to_dict(rule) for rule in config.dense_rules]
        data["dense"] = rules[0] if isinstance(config.dense, GradientRule) else rules
    if config.data_parallel is not None:
        data["data_parallel"] = gradient_rule_to_dict(config.data_parallel)
    if config.ids is not None:
        data["ids"] = asdict(config.ids)
    if config.sync is not None:
        data["sync"] = _sync_rule_to_dict(config.sync)
    if config.sizes != Config.sizes:
        data["sizes"] = config.sizes
    if config.debug is not None:
        data["debug"] = _debug_rule_to_dict(config.debug)
    if config.guard is not None:
        data["guard"] = _guard_rule_to_dict(config.guard)
    return data | {"seed": config.seed, "measure_error": config.measure_error}


def codec_to_dict(codec: Codec) -> dict[str, Any]:
    """Return the codec's name and all its fields as a dict; `codec_from_dict` undoes it."""
    names = [f.name for f in fields(codec)]  # type: ignore[arg-type]
    return {"codec": codec.name} | {name: getattr(codec, name) for name in names}


def _rule_to_dict(rule: TableRule) -> dict[str, Any]:
    """Return the codecs and what differs from the default."""
    data: dict[str, Any] = {"tables": list(rule.tables)} | _pair_to_dict(rule)
    if rule.intra != HopCodecs():
        data["intra"] = _pair_to_dict(rule.intra)
    if rule.unique_bags is not False:
        data["unique_bags"] = rule.unique_bags
    if rule.schedule is not None:
        data["schedule"] = schedule_to_dict(rule.schedule)
    for name in ("classes", "refresh", "link", "error_feedback"):
        control = getattr(rule, name)
        if control is not None:
            is_refresh = isinstance(control, ThresholdRefresh)
            data[name] = _refresh_to_dict(control) if is_refresh else asdict(control)
    return data


def gradient_rule_to_dict(rule: AllReduceRule) -> dict[str, Any]:
    """Return the codec and what differs from the default."""
    name = "cross" if rule.algorithm == "hierarchical" else "codec"
    data: dict[str, Any] = {name: codec_to_dict(rule.codec)}
    for known in fields(rule):
        value = getattr(rule, known.name)
        if known.name != "codec" and value != known.default:
            data[known.name] = list(value) if isinstance(value, tuple) else value
            if isinstance(value, Codec):
                data[known.name] = codec_to_dict(value)
            if isinstance(value, Link | LowRank):
                data[known.name] = {n: v for n, v in asdict(value).items() if v is not None}
            if isinstance(value, ThresholdRefresh):
                data[known.name] = _refresh_to_dict(value)
    return data


def _refresh_to_dict(refresh: ThresholdRefresh) -> dict[str, Any]:
    """Return all fields, without a schedule that is not given."""
    data = {known.name: getattr(refresh, known.name) for known in fields(refresh)}
    schedule = data.pop("schedule")
    return data if schedule is None else data | {"schedule": schedule_to_dict(schedule)}


def _sync_rule_to_dict(rule: SyncRule) -> dict[str, Any]:
    data = {known.name: getattr(rule, known.name) for known in fields(rule)}
    return data | {name: codec_to_dict(data[name]) for name in ("codec", "optimizer")}


def _debug_rule_to_dict(rule: DebugRule) -> dict[str, Any]:
    data: dict[str, Any] = {"every": rule.every, "tables": list(rule.tables)}
    if rule.shadow:
        data["shadow"] = [codec_to_dict(codec) for codec in rule.shadow]
    return data | ({} if rule.folder is None else {"folder": rule.folder})


def _guard_rule_to_dict(rule: GuardRule) -> dict[str, Any]:
    """Return all fields but ladders that are not given."""
    data = {known.name: getattr(rule, known.name) for known in fields(rule)}
    data["tables"] = list(rule.tables)
    for name in ("ladder", "backward_ladder"):
        ladder = data.pop(name)
        if ladder is not None:
            data[name] = [codec_to_dict(codec) for codec in ladder]
    return data


def _pair_to_dict(pair: HopCodecs | TableRule) -> dict[str, Any]:
    return {"forward": codec_to_dict(pair.forward), "backward": codec_to_dict(pair.backward)}
