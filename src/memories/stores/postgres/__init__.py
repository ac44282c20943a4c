"""The store for teams: PostgreSQL with pgvector, shared by many machines.

Each version of a memory and each turn is a row of the table `record` (`schema`), added by
`PostgresStore.append` (`store`). An index contains the words of the rows; each space has a table of
vectors (`vectors`). `search` searches both. `connection` opens and migrates the store, `query`
locks it, and `rewrite` removes records permanently.
"""
