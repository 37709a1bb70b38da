"""The tools of Anthropic's that the client runs: it names them by their type alone, since Anthropic's models know them.

Documented at docs.anthropic.com under "Bash tool", "Text editor tool", "Computer use tool" and "Memory tool".
"""

from __future__ import annotations

import json
import re
from typing import Any

from umaserve.dialects.anthropic.schemas import AnthropicTool

_KIND = re.compile(r"(bash|text_editor|computer|memory)_\d{8}")
_TEXT: dict[str, Any] = {"type": "string"}
_LINE: dict[str, Any] = {"type": "integer", "minimum": 0}
_LINES: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_PLACE: dict[str, Any] = {"type": "array", "items": _LINE, "minItems": 2, "maxItems": 2}
_EDITS = ("view", "create", "str_replace", "insert")
_KEYBOARD = ("key", "type", "hold_key", "wait", "screenshot", "cursor_position", "mouse_move", "scroll")
_CLICKS = ("left_click", "right_click", "middle_click", "double_click", "triple_click", "left_click_drag")
_ACTIONS = (*_KEYBOARD, *_CLICKS, "left_mouse_down", "left_mouse_up")

_BASH = "Runs a command in a shell that stays open between calls, and gives what it writes. restart: opens a new shell."
_EDITOR = (
    "Views and changes files. view: a file (view_range: from which line to which) or a folder; create: a file with "
    "file_text; str_replace: old_str, which has to be there exactly once, by new_str; insert: new_str after the line "
    "insert_line (0: at the beginning)."
)
_MEMORY = (
    "Keeps notes in files under /memories. view: a file (view_range: from which line to which) or a folder; create: a "
    "file with file_text; str_replace: old_str by new_str; insert: insert_text after the line insert_line; delete; "
    "rename: old_path to new_path."
)
_COMPUTER = (
    "Uses mouse and keyboard of a computer whose screen has {} x {} pixels, and takes screenshots. coordinate: x and y "
    "from the upper left corner; text: what to type, or keys such as ctrl+s; duration: in seconds; left_click_drag: "
    "from start_coordinate to coordinate; scroll: by scroll_amount into scroll_direction."
)


def client_tool(kind: str, given: AnthropicTool) -> tuple[str, str] | None:
    """The description and the schema of the tool ``given``, whose type is ``kind``; ``None`` if that is none of
    those that clients run. Raises ``RequestError``."""
    match = _KIND.fullmatch(kind)
    if match is None:
        return None
    edits = {"path": _TEXT, "view_range": _LINES, "file_text": _TEXT, "old_str": _TEXT, "new_str": _TEXT}
    match match[1]:
        case "bash":
            return _BASH, _schema({"command": _TEXT, "restart": {"type": "boolean"}})
        case "text_editor":
            # The first two versions could take an edit back.
            undo = ("undo_edit",) if kind < "text_editor_20250429" else ()
            commands = {"command": {"enum": [*_EDITS, *undo]}}
            return _EDITOR, _schema({**commands, **edits, "insert_line": _LINE}, "command", "path")
        case "memory":
            commands = {"command": {"enum": [*_EDITS, "delete", "rename"]}}
            more = {"insert_line": _LINE, "insert_text": _TEXT, "old_path": _TEXT, "new_path": _TEXT}
            return _MEMORY, _schema({**commands, **edits, **more}, "command")
    sides = given.display_width_px or "?", given.display_height_px or "?"
    actions = {
        "action": {"enum": [*_ACTIONS]},
        "coordinate": _PLACE,
        "start_coordinate": _PLACE,
        "text": _TEXT,
        "duration": {"type": "number", "minimum": 0, "maximum": 100},
        "scroll_direction": {"enum": ["up", "down", "left", "right"]},
        "scroll_amount": _LINE,
    }
    return _COMPUTER.format(*sides), _schema(actions, "action")


def _schema(properties: dict[str, Any], *required: str) -> str:
    return json.dumps({"type": "object", "properties": properties, "required": required})
