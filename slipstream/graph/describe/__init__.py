"""Describes operators: their blocks and sizes, readable names, and keys that are equal on every platform."""
