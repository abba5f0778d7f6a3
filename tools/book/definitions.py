"""What a C or CUDA file defines at its outermost level, and on which lines: what the book shows when a note names it."""

import re

WORD = r"[A-Za-z_]\w*"
# What may stand before a function's name and has parentheses itself.
DECORATION = re.compile(r"(?:__launch_bounds__|__cluster_dims__|__attribute__|__align__|alignas|extern)\s*(?:\((?:[^()]|\([^()]*\))*\))|template\s*<[^{;]*?>\s*(?=\n|static|struct|__|inline)")


def name_of(statement):
    """The name that an outermost statement defines, None for one that defines none (an include, a static_assert, a declaration)."""
    code = re.sub(r"//[^\n]*", "", statement)
    head = DECORATION.sub("", code)
    if match := re.match(rf"\s*(?:typedef )?(?:struct|union|enum)\s+({WORD})\s*(?::[^{{]*)?{{", head):
        return match[1]
    if match := re.match(rf"\s*(?:static )?constexpr [^=(]*?({WORD})(?:\[[^\]]*\])*\s*=", head):
        return match[1]
    if match := re.match(rf"[^=;{{(]*?({WORD})\s*\([^;]*?\)[^;]*?{{", head, re.S):
        return None if match[1] == "static_assert" else match[1]
    return None


def definitions(text):
    """name -> (first line, last line), counted from 1, with the comment above it; of a name that is defined twice (an overload, a
    specialization) the first."""
    lines, found, start = text.split("\n"), {}, None
    for number, line in enumerate(lines, 1):
        if start is None:
            if match := re.match(rf"#define ({WORD})", line):
                found.setdefault(match[1], (number, number))
            if not re.match(rf"{WORD}", line):
                continue
            start = number
        # A statement ends with a brace in the first column, or with a line that closes it before one was opened there.
        statement = "\n".join(lines[start - 1:number])
        is_open = statement.count("{") > statement.count("}")
        if line.startswith("}") or (not is_open and re.search(r"[;}]\s*(//.*)?$", line)):
            name = name_of(statement)
            if name and name not in found:
                first = start
                while first > 1 and lines[first - 2].startswith("//"):
                    first -= 1
                found[name] = (first, number)
            start = None
    return found
