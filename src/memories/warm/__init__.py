"""The client of a running server: it runs commands there over a Unix socket, and starts one."""
