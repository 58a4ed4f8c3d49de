"""Cost models: which programs look fast before they are measured. Protocol: `types.py`; names: `plugins.py`."""

from slipstream.cost.types import CostModel, CostModelError, Example, Features

__all__ = ["CostModel", "CostModelError", "Example", "Features"]
