"""Reading: one memory, lists, conversations, versions, and the language of `--where`."""
