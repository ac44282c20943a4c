"""The PostgreSQL store: a team on one server or on several."""
