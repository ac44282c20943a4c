"""Reading: single memories, lists, conversations, versions, and the language of `--where`."""
