"""Programs that were written for pyzmq and Celery, on this toolkit."""
