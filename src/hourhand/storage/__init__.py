"""PostgreSQL, and only here: every statement by name, one typed method each."""
