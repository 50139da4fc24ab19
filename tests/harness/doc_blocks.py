"""The blocks of a page, which of them run, and as what: a file, a notebook's cell, or commands."""

import ast
import builtins
import re
import symtable
import textwrap
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

SHELL = ("console", "bash", "sh")
_FENCE = re.compile(
    r"(?:^<!-- (?P<marker>not run|long): (?P<why>[^\n]+?) -->\n\s*)?"
    r"^(?P<indent> *)```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    text: str
    file: str = ""
    marker: str = ""
    why: str = ""
    shown: str = ""
    program: str = ""

    def __str__(self):
        return f"{self.page}:{self.line}"

    def to_json(self):
        return asdict(self)


def blocks_of(text, page):
    """Return every block of a page, in order."""
    blocks = []
    end = 0
    for fence in _FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', fence["info"])
        if blocks and fence["language"] == "text" and not text[end : fence.start()].strip():
            blocks[-1] = replace(blocks[-1], shown=textwrap.dedent(fence["text"]))
        end = fence.end()
        blocks.append(
            Block(
                page,
                text[: fence.start("text")].count("\n") + 1,
                fence["language"],
                textwrap.dedent(fence["text"]),
                title[1] if title else "",
                fence["marker"] or "",
                fence["why"] or "",
            )
        )
    return blocks


def blocks(page):
    """Every block of the page at this path."""
    return blocks_of(page.read_text(), str(page.relative_to(ROOT)))


def all_pages():
    """Every page that a reader finds, the README first."""
    documents = [p for p in sorted(DOCS.rglob("*.md")) if "generation" not in p.parts]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *documents]


def is_guard(statement):
    """Return whether a statement is ``if __name__ == "__main__":``."""
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"


def has_guard(text):
    """Return whether something in a block runs only where its file is run as a program."""
    return any(map(is_guard, ast.parse(text).body))


def without_guards(text):
    """Return a block without what runs only where its file is run; the other lines stay in place."""
    lines = text.splitlines(keepends=True)
    for statement in filter(is_guard, ast.parse(text).body):
        for number in range(statement.lineno - 1, statement.end_lineno or 0):
            lines[number] = "\n"
    return "".join(lines)


def foreign_names(text):
    """Return the names that a block uses, and has from somewhere else."""
    module = symtable.symtable(text, "block", "exec")
    own_names = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned()}
    own_names |= {symbol.get_name() for symbol in module.get_symbols() if symbol.is_imported()}
    used = set()
    tables = [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table is module or symbol.is_global())
        }
    return used - own_names - set(dir(builtins)) - {"__name__", "__file__"}


def as_programs(blocks):
    """Give the blocks of a page that are run as a file its text."""
    earlier_code = ""
    programs = []
    for block in blocks:
        text = block.text
        if block.language == "python" and not block.file:
            program = text if has_guard(text) or block.page == "README.md" else ""
            if not program and (names := studies_of(text)):
                runs = "\n".join(f"    {name}.run(trials=1)" for name in names)
                program = f'{text}\n\nif __name__ == "__main__":\n{runs}\n'
            above = earlier_code * bool(program and foreign_names(text))
            programs.append(replace(block, program=above + program))
            earlier_code += without_guards(text) + "\n\n"
        else:
            programs.append(block)
    return programs


def studies_of(text):
    """Return the names that a block gives to its studies."""
    return [
        statement.targets[0].id
        for statement in ast.parse(text).body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Call)
        and ast.unparse(statement.value.func) == "Study"
    ]
