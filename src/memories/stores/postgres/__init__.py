"""The store for teams: PostgreSQL with pgvector, shared by many machines.

Each version of a memory and each turn is a row of the table `record`, which `schema` defines.
`store` adds the rows. An index contains their words, `vectors` keeps a table for each space, and
`search` uses both. `connection` opens and migrates the store, `query` locks it, and `rewrite`
removes records permanently.
"""
