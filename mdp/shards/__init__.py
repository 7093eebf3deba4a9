"""A broker of several processes: the front at the public endpoint, and the shards behind it."""
