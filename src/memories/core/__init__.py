"""Shared by every other package: times, ids, durable files, HTTP, deadlines, usage events."""
