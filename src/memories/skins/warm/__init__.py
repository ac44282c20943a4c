"""The command through a server: how it asks over a Unix socket, and how what it asks is done there."""
