"""Former import paths of `memories.integrations`; they go with the next release."""
