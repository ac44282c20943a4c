"""Memories inside LangGraph."""
