"""What a stream of text can show, for the programs of the command line.

In here: styles, a line that rewrites itself, and stand-ins for characters that an encoding does not have. Not in here:
what is written.
"""

import os
import shutil
from typing import TextIO

# Back to the first column, and clear the line.
CLEAR = "\r\x1b[K"

_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m", "red": "\x1b[31m", "green": "\x1b[32m"}
_PLAIN = "\x1b[0m"


class Terminal:
    """What a stream can show: styles and a rewritten line on a terminal, Unicode if its encoding has it."""

    def __init__(self, stream: TextIO) -> None:
        """Look at the stream and the environment (`NO_COLOR`, `TERM`) once."""
        self.stream = stream
        self.live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self.colour = self.live and not os.environ.get("NO_COLOR")
        self.unicode = _encodes(stream, "█▓▒░·→…")

    @property
    def width(self) -> int:
        """Columns; 100 where there is no terminal."""
        return shutil.get_terminal_size((100, 24)).columns if self.live else 100

    def style(self, name: str, text: str) -> str:
        """Return the text in a style, or as it is where styles cannot be shown."""
        return f"{_STYLES[name]}{text}{_PLAIN}" if self.colour else text

    def write(self, text: str) -> None:
        """Write and flush, with a stand-in for what the stream's encoding cannot express."""
        encoding = self.stream.encoding or "utf-8"
        if not self.unicode:
            text = text.replace("→", "->").replace("…", "...").replace("·", "-")
        self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self.stream.flush()


def _encodes(stream: TextIO, text: str) -> bool:
    """Say whether the stream's encoding has these characters."""
    try:
        text.encode(stream.encoding or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
