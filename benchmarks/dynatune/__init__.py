"""DynaTune's figures, made again from recorded tuning curves of real operators (3 minutes)."""
