"""Programs that agent hosts run on events: recall, capture and the on/off switch.

Recall: `hook` (the process) → `events` → `recall_strategy` (server, own search or scratchpad) →
`recall.build_context` → `recall` (the block at a session's start, from `identity.prompt`) or
`recall_prompt` (memories that pass the `gate`).
Capture: `events` → `inbox` → `flush` → `transcripts` and `proposals`.
"""
