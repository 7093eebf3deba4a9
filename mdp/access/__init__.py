"""Access rules: calling, serving and managing services."""
