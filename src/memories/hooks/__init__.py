"""Programs that agents' hosts run on events: recall, capture and the on/off switch."""
