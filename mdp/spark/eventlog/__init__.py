"""Event log as a Spark data source, and the report about it."""
