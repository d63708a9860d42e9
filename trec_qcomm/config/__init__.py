"""Configuration: frozen dataclasses that hold codecs, and the YAML that they are read from."""

from trec_qcomm.config.config import Config as Config
from trec_qcomm.config.config import IdRule as IdRule
from trec_qcomm.config.files import codec_from_dict as codec_from_dict
from trec_qcomm.config.files import codec_to_dict as codec_to_dict
from trec_qcomm.config.files import config_from_dict as config_from_dict
from trec_qcomm.config.files import config_to_dict as config_to_dict
from trec_qcomm.config.files import load_config as load_config
from trec_qcomm.config.files import load_preset as load_preset
from trec_qcomm.config.files import parse_yaml as parse_yaml
from trec_qcomm.config.files import preset_path as preset_path
from trec_qcomm.config.files import presets as presets
from trec_qcomm.config.files import read_config as read_config
from trec_qcomm.config.files import read_yaml as read_yaml
from trec_qcomm.config.files import write_yaml as write_yaml
from trec_qcomm.config.gradients import AllReduceRule as AllReduceRule
from trec_qcomm.config.gradients import GradientRule as GradientRule
from trec_qcomm.config.gradients import LowRank as LowRank
from trec_qcomm.config.gradients import TableGradientRule as TableGradientRule
from trec_qcomm.config.section import Section as Section
from trec_qcomm.config.tables import AUTO_SHARE as AUTO_SHARE
from trec_qcomm.config.tables import HopCodecs as HopCodecs
from trec_qcomm.config.tables import TableRule as TableRule
from trec_qcomm.config.tables import UniqueBagsChoice as UniqueBagsChoice
