"""PostgreSQL: connections, names, types and the binary form of COPY, for source and sink."""
