"""The event log as a Spark data source, and the report made from it."""
