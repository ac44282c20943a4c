"""Shared by every other room: times, ids, durable files, HTTP, deadlines, figures of operations."""
