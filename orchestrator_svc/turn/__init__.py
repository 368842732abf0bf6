"""The turn: decided in `machine` and `output` (pure), performed by `runner` and `desk`."""
