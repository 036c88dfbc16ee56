"""What only Linux or Unix has is used where it is there, and else left out."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = [*(ROOT / 'bioattn_mm').rglob('*.py'), *(ROOT / 'tools').rglob('*.py'), ROOT / 'setup.py']
OF_LINUX = re.compile(
    r'import (fcntl|resource|pwd|grp|termios)|os\.(fork\w*|sched_\w+|getuid|killpg|setsid)|'
    r"signal\.(SIG(HUP|USR[12]|KILL|CHLD|ALRM)|sigwaitinfo|pthread_sigmask|alarm|setitimer)|'/proc.*'"
)


def linux_alone(source: str) -> list[str]:
    """What of it would fail elsewhere: neither in a `try`, nor in a function that asks `hasattr` first."""
    nodes = list(ast.walk(ast.parse(source)))
    guards = [child for node in nodes if isinstance(node, ast.Try) for child in node.body]
    guards += [node for node in nodes if isinstance(node, ast.FunctionDef) and 'hasattr(' in ast.unparse(node)]
    guarded = {node for guard in guards for node in ast.walk(guard)}
    kinds = (ast.Import, ast.Attribute, ast.Constant)
    texts = [ast.unparse(node) for node in nodes if isinstance(node, kinds) and node not in guarded]
    return [text for text in texts if OF_LINUX.fullmatch(text)]


def test_nothing_needs_linux() -> None:
    found = {str(path.relative_to(ROOT)): linux_alone(path.read_text()) for path in FILES}
    # Started only where `start_worker` has found `sigwaitinfo`.
    assert found.pop('bioattn_mm/training/randomness.py') == ['signal.sigwaitinfo']
    assert not {path: names for path, names in found.items() if names}
