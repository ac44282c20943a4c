"""Who talks: each skin parses, calls one method, and renders; each can be deleted."""
