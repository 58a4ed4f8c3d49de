"""3x3 convolutions by Winograd's method: transforms, rewritten function, schedules."""
