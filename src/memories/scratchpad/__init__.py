"""The hot tier: one short file per namespace that mirrors the memories that matter now."""
