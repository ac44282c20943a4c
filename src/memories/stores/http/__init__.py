"""The store over HTTP: the store of a `memory serve` on another machine."""
