"""Shared by the other packages: times, ids, durable files, HTTP, deadlines, usage events."""
