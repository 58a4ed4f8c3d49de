"""Graph preparation: passes, operators and their default programs, and building the compiled model."""
