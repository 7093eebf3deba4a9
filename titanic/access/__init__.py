"""Authorization of users."""
