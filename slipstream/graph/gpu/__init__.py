"""Default programs of operators on NVIDIA GPUs, half precision, and compiling kernels."""
