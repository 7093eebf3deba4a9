"""The name service: names to endpoints, on Freelance servers."""
