"""The default store: one file of SQLite, shared by the processes of one machine.

A memory's version, or a turn, is a row of the table `record` (`schema`), added by
`SQLiteStore.append` (`store`). Its words are in FTS5 (`words`), its vectors in codes and blocks
(`vectors`, `quantize`), and turns are searched in `turns`.
"""
