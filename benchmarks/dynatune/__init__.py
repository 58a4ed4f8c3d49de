"""DynaTune's figures, made again from recorded tuning curves of real operators."""
