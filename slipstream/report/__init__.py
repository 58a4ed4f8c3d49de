"""What people look at: one page that shows a session, from a file or live. Reads the store, needs no TVM."""
