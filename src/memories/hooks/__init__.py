"""Programs that agent hosts run on events: recall, capture and the on/off switch.

Recall: `hook` (the process) → `handler` → `recall_strategy` (server, own search or scratchpad) →
`model_context` (at a session's start, `identity.session_block`) → `prompt_recall` (before a prompt,
the memories and turns that pass the `gate`).
Capture: `handler` → `inbox` → `flush` → `transcripts` and `proposals`.
"""
