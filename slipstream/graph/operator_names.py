def describe(func): return "x",()
