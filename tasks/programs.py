"""Finds the program in what a model answered: the completion of a given function, or a program of its own.

Never raises for what a model wrote, and repairs nothing: what stands there is taken as it is, or cut.
"""

import ast
import re
import textwrap
import warnings

from tasks.answers import TRUNCATED, Answer, strip_reasoning

FENCE = re.compile(
    r"""^[ \t]*(?P<mark>`{3,}|~{3,})[ \t]*(?P<tag>[^\n`]*)\n
    (?P<body>.*?)
    (?:^[ \t]*(?P=mark)[ \t]*$|\Z)  # a cut-off answer leaves the fence open""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
TOP_LEVEL = re.compile(r"(?:from\s+\S+\s+import|import\s+\w|(?:async\s+)?def\s+\w|class\s+\w|@\w)")
PYTHON = re.compile(r"(?:python|py|py3|ipython|pycon)?(?![a-z])[\d. ]*", re.IGNORECASE)  # a fence's tag, or none
READS_OR_WRITES = re.compile(
    r"\b(?:print|input)\s*\(|\bsys\.std|^\s*(?:import|from|def|class|for|while)\s", re.MULTILINE
)
READS_INPUT = re.compile(r"\binput\s*\(|\bsys\.stdin|\bopen\(0|fileinput")
SCRIPT_LINE = re.compile(r"(?:from|import|def|class|async|for|while|if|try|with)\b|@|[\w.,\[\] ]+=[^=]|[\w.]+\(")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MAX_CHARS = 100_000  # no answer is longer; the parser need not see more


def extract_program(prompt: str, completion: str, entry_point: str) -> Answer:
    """The program that `completion` makes of `prompt`, which ends in the signature and docstring of `entry_point`.

    Understood, in this order: a body that continues the prompt with its indentation, a fenced block that defines the
    function (the last one counts), unfenced code that defines it, and a body in a fence or without indentation. The
    prompt's imports and helpers come first. Prose around code, calls and assertions at top level (usage examples) and
    a cut-off end are dropped.
    """
    rest = strip_reasoning(completion)
    if rest is None:
        return Answer(text=None, how=TRUNCATED)
    rest = rest[:MAX_CHARS].expandtabs(4).replace("\r\n", "\n")
    fences = list(FENCE.finditer(rest))
    blocks = [textwrap.dedent(fence["body"]) for fence in fences]
    bare = rest[: fences[0].start()] if fences else rest
    preamble = before_definition(prompt, entry_point)
    defines = definition_of(entry_point)

    def body_of(text: str) -> str | None:
        return continued_program(prompt, preamble, defines.split(text, maxsplit=1)[0], entry_point)

    if re.match(r"\s*\n {2,}\S| {2,}\S", bare) and (program := body_of(bare)):
        return Answer(text=program, how="bare body")
    wholes = [*(("fenced function", block) for block in reversed(blocks)), ("bare function", bare)]
    for how, text in wholes:
        if defines.search(text) and (program := whole_program(preamble, text, entry_point)):
            return Answer(text=program, how=how)
    for how, text in [*(("fenced body", block) for block in blocks), ("bare body", bare)]:
        if program := body_of(text):
            return Answer(text=program, how=how)
    return Answer(text=None, how="no code")


def extract_script(completion: str, entry_point: str | None = None) -> Answer:
    """The program of an answer to a task that gave no code to continue.

    With an `entry_point` (a function or a class) what `extract_program` takes for a whole program: the last fenced block
    that defines it, else unfenced code; imports, definitions and what they use are kept. Without one the last Python block
    as it stands, `__main__` guard included, else unfenced code from its first line on.
    """
    rest = strip_reasoning(completion)
    if rest is None:
        return Answer(text=None, how=TRUNCATED)
    rest = rest[:MAX_CHARS].expandtabs(4).replace("\r\n", "\n")
    fences = list(FENCE.finditer(rest))
    python = [fence for fence in reversed(fences) if PYTHON.fullmatch(fence["tag"].strip())]
    tagged = [fence for fence in python if fence["tag"].strip()]
    blocks = [textwrap.dedent(fence["body"]) for fence in (tagged if entry_point is None and tagged else python)]
    if entry_point is None:  # after the program stands how to call it, or what it prints
        blocks.sort(key=lambda block: not READS_INPUT.search(block))
    bare = rest[: fences[0].start()] if fences else rest
    for how, text in [*(("fenced program", block) for block in blocks), ("bare program", bare)]:
        if entry_point is not None:
            program = whole_program("", text, entry_point)
        else:
            program = whole_script(text, is_fenced=text is not bare)
        if program:
            return Answer(text=program, how=how)
    return Answer(text=None, how="no code")


def whole_script(text: str, *, is_fenced: bool) -> str | None:
    """`text` from its first line of code on, as far as it compiles. None where nothing in it reads, writes or defines."""
    lines = text.split("\n")
    starts = [0] if is_fenced else [number for number, line in enumerate(lines) if SCRIPT_LINE.match(line)]
    best, seen = "", 0
    for start in starts[:20]:
        if start < seen:
            continue
        code, num_lines = longest_program(lines[start:])
        seen = start + num_lines
        if READS_OR_WRITES.search(code) and len(code) > len(best):
            best = code
    return best.rstrip() + "\n" if best else None


def definition_of(entry_point: str) -> re.Pattern[str]:
    return re.compile(rf"^(?:async\s+)?def\s+{re.escape(entry_point)}\b", re.MULTILINE)


def before_definition(prompt: str, entry_point: str) -> str:
    found = list(definition_of(entry_point).finditer(prompt))
    return prompt[: found[-1].start()] if found else prompt


def whole_program(preamble: str, text: str, entry_point: str) -> str | None:
    """`text` from its first line of code on, as far as it parses, after `preamble`; None without the function."""
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines) if TOP_LEVEL.match(line)]
    attempts = [0, *(start for start in starts if start)][:20]
    for start in attempts:
        code, _ = longest_program(lines[start:])
        if program := keep_definitions(preamble, code, entry_point):
            return program
    return None


def continued_program(prompt: str, preamble: str, body: str, entry_point: str) -> str | None:
    """`prompt` continued by `body`, under the indentation that lets most of it parse."""
    if not body.strip():
        return None
    body = body.strip("\n")
    # Continuing a prompt that ends in a newline, models drop the indentation of the first line, or of all lines.
    forms = [body, "    " + body.lstrip(), textwrap.indent(textwrap.dedent(body), "    ")]
    head = prompt.rstrip("\n").split("\n")
    best, most = None, 0
    for form in forms if body[0] in " \t" else forms[1:]:
        code, num_lines = longest_program([*head, *until_unindented(form.split("\n"))])
        program = keep_definitions(preamble, code[len(preamble) :], entry_point)
        if program and num_lines - len(head) > most:
            best, most = program, num_lines - len(head)
    return best


def until_unindented(lines: list[str]) -> list[str]:
    """Up to the first line of prose: one at the margin that starts no definition and closes no bracket."""
    for number, line in enumerate(lines):
        if line and line[0] not in " \t#)]}'\"" and not TOP_LEVEL.match(line):
            return lines[:number]
    return lines


def longest_program(lines: list[str]) -> tuple[str, int]:
    """The longest run of `lines` from the first that compiles, and how many lines that are."""
    end = len(lines)
    for _ in range(200):  # each step cuts at the reported error or one line earlier
        code = "\n".join(lines[:end])
        error_line = syntax_error_line(code)
        if error_line is None:
            return code, end
        end = max(0, min(end - 1, error_line - 1))
    return "", 0


def syntax_error_line(code: str) -> int | None:
    """None when `code` compiles."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "answer", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, MemoryError, RecursionError, OverflowError):
        return 1
    return None


def keep_definitions(preamble: str, code: str, entry_point: str) -> str | None:
    """Preamble and code as one program, without usage examples. None unless a real `entry_point` is defined."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = [*ast.parse(preamble).body, *ast.parse(code).body]
            places = [number for number, node in enumerate(nodes) if is_definition(node, entry_point)]
            if not places or only_docstring(nodes[places[-1]]):
                return None
            used = {
                node.id
                for kept in nodes
                if isinstance(kept, DEFINITIONS) or is_definition(kept, entry_point)
                for node in ast.walk(kept)
                if isinstance(node, ast.Name)
            }
            used.add(entry_point)
            kept = [node for n, node in enumerate(nodes) if wanted(node, n < places[-1], used, entry_point)]
            kept.sort(key=lambda node: not (isinstance(node, ast.ImportFrom) and node.module == "__future__"))
            return ast.unparse(ast.Module(body=kept, type_ignores=[])) + "\n"
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def is_definition(node: ast.stmt, name: str) -> bool:
    """A function, a class, or `name = lambda ...` and the like."""
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    return isinstance(node, DEFINITIONS) and node.name == name


def only_docstring(node: ast.stmt) -> bool:
    body = node.body if isinstance(node, DEFINITIONS) else []
    return isinstance(node, DEFINITIONS) and all(
        isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str)
        for one in body
    )


def wanted(node: ast.stmt, is_before: bool, used: set[str], entry_point: str) -> bool:
    """Imports and definitions always; other statements before the function unless they use it, or if they set a name
    that a definition uses."""
    if isinstance(node, (*DEFINITIONS, ast.Import, ast.ImportFrom)):
        return True
    names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
    if isinstance(node, ast.Assert) or any(one.id in ("__name__", "input", "print") for one in names):
        return False
    sets_used = any(isinstance(one.ctx, ast.Store) and one.id in used for one in names)
    if isinstance(node, ast.Expr) or is_before:
        return is_before and all(one.id != entry_point for one in names)
    return sets_used
