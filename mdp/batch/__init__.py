"""Requests of many rows: an Arrow table each way. The extra `spark` (pyarrow) is needed, Spark is not."""
