"""What secrets look like, and how they are taken out of a text. Pure; loaded only where something is written."""
