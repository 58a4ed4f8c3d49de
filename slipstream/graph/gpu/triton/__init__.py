"""Triton as a generator of GPU code: templates whose kernels are written from an operator's own expressions."""
