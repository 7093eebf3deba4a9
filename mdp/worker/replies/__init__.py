"""Memory of a worker of the requests it has executed. Pure."""
