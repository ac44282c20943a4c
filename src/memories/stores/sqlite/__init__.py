"""The default store: one SQLite file, shared by the processes of one machine.

A version of a memory, or a turn, is a row of the table `record` (`schema`), added by
`SQLiteStore.append` (`store`). Its words are in FTS5 (`words`), its vectors in codes and blocks
(`vectors`, `quantize`); `turns` searches turns.
"""
