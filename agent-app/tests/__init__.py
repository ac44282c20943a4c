"""Tests of the modules that the app imports; `tests/agent` has those of the library behind them."""
