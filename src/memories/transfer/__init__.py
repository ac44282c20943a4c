"""Operations on whole stores: export, import, backup, repair, migration, and the audit log."""
