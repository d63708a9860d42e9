"""Configuration: frozen dataclasses that hold codecs, and the YAML that they are read from."""

from trec_qcomm.config.config import Config, IdRule
from trec_qcomm.config.files import (
    codec_from_dict,
    codec_to_dict,
    config_from_dict,
    config_to_dict,
    load_config,
    load_preset,
    parse_yaml,
    preset_path,
    presets,
    read_config,
    read_yaml,
    write_yaml,
)
from trec_qcomm.config.gradients import (
    AllReduceRule,
    GradientRule,
    LowRank,
    TableGradientRule,
)
from trec_qcomm.config.section import Section
from trec_qcomm.config.tables import (
    AUTO_SHARE,
    HopCodecs,
    TableRule,
    UniqueBagsChoice,
)

__all__ = [
    "AUTO_SHARE",
    "AllReduceRule",
    "Config",
    "GradientRule",
    "HopCodecs",
    "IdRule",
    "LowRank",
    "Section",
    "TableGradientRule",
    "TableRule",
    "UniqueBagsChoice",
    "codec_from_dict",
    "codec_to_dict",
    "config_from_dict",
    "config_to_dict",
    "load_config",
    "load_preset",
    "parse_yaml",
    "preset_path",
    "presets",
    "read_config",
    "read_yaml",
    "write_yaml",
]
