"""Services as functions of SQL and of columns."""
