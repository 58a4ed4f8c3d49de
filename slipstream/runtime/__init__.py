"""Compiled models as libraries of their own: a thread pool, a plan of the calls, and C that needs no TVM."""
