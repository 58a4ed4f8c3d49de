"""A terminal's screen, as far as the live view uses one: what a person would see after some output."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\x1b\[(?P<private>\?)?(?P<numbers>[\d;]*)(?P<final>[A-Za-z])|(?P<newline>\r?\n)|(?P<text>[^\x1b\r\n])"
)


class Screen:
    """Knows cursor addressing, clearing and the alternate screen; colours are read and dropped."""

    def __init__(self) -> None:
        self.normal: list[str] = [""]  # everything printed outside the alternate screen
        self.alternate: dict[int, dict[int, str]] = {}
        self.in_alternate = False
        self.cursor_shown = True
        self._row = self._column = 0

    def feed(self, output: str) -> Screen:
        """Show `output`; anything it does not know is an error."""
        position = 0
        while position < len(output):
            token = _TOKEN.match(output, position)
            assert token, f"a control sequence no view should send: {output[position : position + 10]!r}"
            position = token.end()
            if token["final"]:
                self._control(token["private"], token["numbers"], token["final"])
            elif self.in_alternate:
                assert not token["newline"], "a line break would scroll the picture"
                self.alternate.setdefault(self._row, {})[self._column] = token["text"]
                self._column += 1
            elif token["newline"]:
                self.normal.append("")
            else:
                self.normal[-1] += token["text"]
        return self

    def lines(self) -> list[str]:
        """The alternate screen, line by line."""
        rows = [self.alternate.get(row, {}) for row in range(max(self.alternate, default=-1) + 1)]
        return ["".join(row.get(column, " ") for column in range(max(row) + 1)).rstrip() if row else "" for row in rows]

    def _control(self, private: str | None, numbers: str, final: str) -> None:
        match private, numbers, final:
            case "?", "1049", _:
                self.in_alternate = final == "h"
                self.alternate = {}
            case "?", "25", _:
                self.cursor_shown = final == "h"
            case None, _, "m":
                pass
            case None, "2", "J":
                self.alternate = {}
            case None, _, "H":
                row, _, column = numbers.partition(";")
                self._row, self._column = int(row or 1) - 1, int(column or 1) - 1
            case unknown:
                raise AssertionError(f"a control sequence no view should send: {unknown}")
