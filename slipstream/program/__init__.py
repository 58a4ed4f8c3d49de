"""Programs as data: a sketch, the decisions along it, and the space of both for an operator."""
