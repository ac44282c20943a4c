"""The store of a team: PostgreSQL with pgvector, shared by many machines.

A memory's version, or a turn, is a row of the table `record` (`schema`), added by
`PostgresStore.append` (`store`). Its words are in an index, its vectors in a table for each space
(`vectors`), and both are searched by `search`. `connection` opens and migrates, `transaction`
locks, `rewrite` removes for good.
"""
