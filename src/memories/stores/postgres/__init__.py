"""The store of a team: PostgreSQL with pgvector, shared by many machines.

A version of a memory, or a turn, is a row of the table `record` (`schema`), which
`PostgresStore.append` (`store`) adds. Its words are in an index, its vectors in a table for each
space (`vectors`). `search` searches both. `connection` opens and migrates, `transaction` locks,
`rewrite` removes permanently.
"""
