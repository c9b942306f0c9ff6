# SPDX-License-Identifier: MIT
"""Finds a Python with the packages of the data step, and continues in it.

Tries only $QLORA_PYTHON if it is set. Otherwise tries this Python, then that of
$VIRTUAL_ENV, then the .venv of the repository (scripts/install.sh). An
installed qlora has ~/.local/share/qlora/venv, which the user may create,
instead of .venv. A Python without the packages starts the next one. The last
one uses copies that were installed with qlora.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys

from .errors import DataError

PACKAGES = ("tokenizers", "jinja2")

# Environment variable that passes the Pythons tried so far to the next one.
_TRIED = "QLORA_DATA_TRIED"
_REPOSITORY = os.path.abspath(os.path.join(
    os.path.dirname(os.path.realpath(__file__)), "..", "..", ".."))
# Folder with copies of PACKAGES for any Python, if qlora is installed.
_COPIES = os.path.join(_REPOSITORY, "qlora", "qlora-data", "packages")
# True if this file is in share/qlora/qlora-data/qlora_data of an installation.
_IS_INSTALLED = os.path.basename(_REPOSITORY) == "share"


def _venv() -> str:
    """Returns the virtual environment that is searched last."""
    if not _IS_INSTALLED:
        return os.path.join(_REPOSITORY, ".venv")
    data = (os.environ.get("XDG_DATA_HOME")
            or os.path.expanduser("~/.local/share"))
    return os.path.join(data, "qlora", "venv")


def _candidates() -> list[str]:
    named = os.environ.get("QLORA_PYTHON")
    if named:
        found = shutil.which(named)
        if not found:
            raise DataError(f"QLORA_PYTHON: cannot execute '{named}'",
                            "name a Python, or unset the variable")
        return [found]
    folders = [os.environ.get("VIRTUAL_ENV"), _venv()]
    pythons = [os.path.join(folder, "bin", "python")
               for folder in folders if folder]
    return [sys.executable] + [python for python in pythons
                               if os.access(python, os.X_OK)]


def _new_environment(packages: str) -> str:
    venv = shlex.quote(_venv())
    return f"python3 -m venv {venv} && {venv}/bin/pip install {packages}"


def how_to_install(packages: str) -> str:
    """Returns a command after which the next start finds the packages."""
    if sys.prefix != sys.base_prefix:  # an environment
        return f"{shlex.quote(sys.executable)} -m pip install {packages}"
    return _new_environment(packages)


def _lacking(packages: tuple[str, ...]) -> list[str]:
    return [name for name in packages if not importlib.util.find_spec(name)]


def _missing(tried: list[str], packages: tuple[str, ...]) -> DataError:
    names, looked = _lacking(packages), ", ".join(tried)
    if os.environ.get("QLORA_PYTHON"):
        todo = (f"run: {shlex.quote(tried[-1])} -m pip install "
                f"{' '.join(names)}, or unset QLORA_PYTHON")
    elif _IS_INSTALLED:
        todo = "run: " + _new_environment(" ".join(names))
    else:
        install = shlex.quote(os.path.join(_REPOSITORY, "scripts/install.sh"))
        todo = f"run {install}, or: " + _new_environment(" ".join(packages))
    return DataError("the Python packages " + " and ".join(names)
                     + f" are missing (looked in {looked})", todo)


def ensure_packages(arguments: list[str],
                    more: tuple[str, ...] = ()) -> None:
    """Returns in a Python that has PACKAGES and `more`. If this Python lacks
    them, another one starts from the beginning with the same arguments."""
    packages = PACKAGES + more
    # `tried` has paths as they were executed: the Python of a virtual
    # environment may report another path as sys.executable.
    tried = os.environ.pop(_TRIED, "").split(os.pathsep)
    tried = [python for python in tried if python]
    candidates = _candidates()
    if not tried and candidates[0] == sys.executable:
        tried = [sys.executable]
    # `tried` is empty if another Python must run first ($QLORA_PYTHON).
    if tried and not _lacking(packages):
        return
    for python in candidates:
        if python not in tried:
            os.environ[_TRIED] = os.pathsep.join(tried + [python])
            os.execv(python, [python, sys.argv[0], *arguments])
    sys.path.append(_COPIES)
    if _lacking(packages):
        raise _missing(tried, packages)
