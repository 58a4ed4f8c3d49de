"""The runtimes a user could pick instead, each in a process of its own, at the best of its sensible settings."""
