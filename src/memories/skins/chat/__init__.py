"""The chat agent of `memory chat`: LangGraph, Kimi, a session on disk, and facts about the user as JSON lines."""
