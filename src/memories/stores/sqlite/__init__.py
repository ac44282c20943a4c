"""The default store: one SQLite file, shared by the processes on one machine.

Each version of a memory and each turn is a row of the table `record`, which `schema` creates and
`SQLiteStore.append` in `store` writes to. `words` indexes the words with FTS5. `quantize` reduces
vectors to small codes, and `vectors` stores and searches these. `turns` searches for turns.
"""
