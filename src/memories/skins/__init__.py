"""Former import paths of `memories.integrations`; they will be removed in the next release."""
