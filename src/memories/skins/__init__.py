"""Former places of what is in `memories.integrations`; they go with the next release."""
