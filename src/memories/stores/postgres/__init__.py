"""The store for teams: PostgreSQL with pgvector, shared by many machines.

Each version of a memory and each turn is a row of the table `record`, which `schema` defines.
`store` adds the rows. An index contains their words, `vectors` keeps a table for each space, and
`search` uses both. `connection` opens and migrates the store and begins transactions. The class
`Transaction` in `query` runs their statements and locks namespaces. `counts` keeps the numbers of
records up to date, and `rewrite` removes records permanently.
"""
