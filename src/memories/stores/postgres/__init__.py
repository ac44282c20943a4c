"""The store of a team: PostgreSQL with pgvector, shared by many machines.

A memory's version, or a turn, is a row of the table `record` (`schema`), added by `PostgresStore.append` (`store`). Its
words are in an index (`words`), its vectors in a table for each space (`vectors`, `spaces`), and turns are searched in
`turns`. `connection` opens and migrates, `transaction` locks, `erasure` removes for good.
"""
