"""What answers say of a memory, a turn, a version and a hit: one table, in `fields`."""
