"""Values of columns in requests and replies."""
