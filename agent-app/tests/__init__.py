"""Tests of the app's modules; `tests/context` tests the library code behind them."""
