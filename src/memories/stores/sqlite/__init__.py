"""The default store: one SQLite file, shared by the processes on one machine.

A version of a memory, or a turn, is a row of the table `record` (`schema`), added by
`SQLiteStore.append` (`store`). FTS5 indexes its words (`words`). Its vectors are stored as codes
and blocks (`vectors`, `quantize`). `turns` searches turns.
"""
