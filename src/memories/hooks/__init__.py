"""The programs that agents' hosts run at their events: recall, capture and the on/off switch."""
