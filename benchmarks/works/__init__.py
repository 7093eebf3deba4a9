"""The works that are measured: which programs play them, what is compared and what must come out."""
