"""Other runtimes to compare with, each in a process of its own, at the best of the settings tried."""
