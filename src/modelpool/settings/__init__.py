"""Settings: what there is, where values come from, and how to describe them."""

from modelpool.settings.describe import SettingInfo, describe_settings
from modelpool.settings.load import load_settings
from modelpool.settings.model import Budget, Settings, parse_device

__all__ = ["Budget", "SettingInfo", "Settings", "describe_settings", "load_settings", "parse_device"]
