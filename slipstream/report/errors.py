"""What can go wrong with a report or a live page."""

from __future__ import annotations

from slipstream.errors import SlipstreamError


class ReportError(SlipstreamError):
    """A report that cannot be made, or a page that cannot be served, as asked."""
