"""The store for teams: PostgreSQL with pgvector, shared by many machines.

A version of a memory, or a turn, is a row of the table `record` (`schema`), which
`PostgresStore.append` (`store`) adds. An index contains its words; each space has a table of
vectors (`vectors`). `search` searches both. `connection` opens and migrates the store,
`query` locks it, and `rewrite` removes records permanently.
"""
