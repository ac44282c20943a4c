"""The files store: lines of JSON that people, grep and git can read."""
