"""What only Linux or Unix has is used where it is there, and else left out."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = [*(ROOT / 'bioattn_mm').rglob('*.py'), *(ROOT / 'tools').rglob('*.py'), ROOT / 'setup.py']
OF_LINUX = re.compile(
    r'import (fcntl|resource|pwd|grp|termios)\b|\bos\.(fork|sched_|getuid|killpg|setsid)|'
    r"\bsignal\.(SIG(HUP|USR[12]|KILL|CHLD|ALRM)|sigwaitinfo|pthread_sigmask|alarm|setitimer)|'/proc"
)


def linux_alone(source: str) -> list[str]:
    """What of it would fail elsewhere: neither in a `try`, nor in a function that asks `hasattr` first."""
    lines, nodes = source.splitlines(), list(ast.walk(ast.parse(source)))
    guards = [child for node in nodes if isinstance(node, ast.Try) for child in node.body]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    guards += [node for node in functions if 'hasattr(' in ''.join(lines[node.lineno - 1 : node.end_lineno])]
    guarded = {number for guard in guards for number in range(guard.lineno, guard.end_lineno + 1)}
    found = [OF_LINUX.search(line) for number, line in enumerate(lines, 1) if number not in guarded]
    return [match[0] for match in found if match]


def test_nothing_needs_linux() -> None:
    found = {str(path.relative_to(ROOT)): linux_alone(path.read_text()) for path in FILES}
    # Started only where `start_worker` has found `sigwaitinfo`.
    assert found.pop('bioattn_mm/training/randomness.py') == ['signal.sigwaitinfo']
    assert not {path: names for path, names in found.items() if names}
