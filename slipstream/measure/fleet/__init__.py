"""Building and measuring on the nodes of a Ray cluster; the engine is the one of a single machine.

driver: Engine, FleetDevices, FleetServer ── gateway process: Ray ──┬── node: builders, a CPU or GPUs
                                                                    └── node: ...
"""
