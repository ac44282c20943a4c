"""How the command asks a running server over a Unix socket, and starts one."""
