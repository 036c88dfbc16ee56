"""What only Linux or Unix has is used where it is there, and else left out."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = [*(ROOT / 'bioattn_mm').rglob('*.py'), *(ROOT / 'tools').rglob('*.py'), ROOT / 'setup.py']
MODULES = {'fcntl', 'resource', 'pwd', 'grp', 'termios'}
CALLS = re.compile(
    r'os\.(fork\w*|sched_\w+|getuid|killpg|setsid)|'
    r'signal\.(SIG(HUP|USR[12]|KILL|CHLD|ALRM)|sigwaitinfo|pthread_sigmask|alarm|setitimer)'
)


def linux_alone(source: str) -> list[str]:
    """What of it would fail elsewhere: neither in a `try`, nor in a function or branch that asks `hasattr` first."""
    found = []

    def visit(node: ast.AST, guarded: bool) -> None:
        if isinstance(node, ast.FunctionDef) and 'hasattr(' in ast.unparse(node):
            guarded = True
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name in MODULES]
        elif isinstance(node, ast.Attribute) and CALLS.fullmatch(ast.unparse(node)):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith('/proc'):
            names = [node.value]
        if not guarded:
            found.extend(names)
        tried = isinstance(node, ast.Try)
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child, guarded or (tried and field == 'body'))

    visit(ast.parse(source), False)
    return found


def test_nothing_needs_linux() -> None:
    found = {str(path.relative_to(ROOT)): linux_alone(path.read_text()) for path in FILES}
    # Started only where `start_worker` has found `sigwaitinfo`.
    assert found.pop('bioattn_mm/training/randomness.py') == ['signal.sigwaitinfo']
    assert not {path: names for path, names in found.items() if names}
