"""Default programs of operators on CPUs, and passes for CPU code."""
