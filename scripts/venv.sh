# Sourced by the other scripts: makes a virtual environment and installs this checkout into it.
#
#   use_venv EXTRA    sets PY to the interpreter of $VENV, or of the active environment, or of .venv,
#                     which is made when it is missing. $PYTHON chooses what it is made from. Returns 1 when
#                     that fails, also where the caller's `set -e` does not count.

say() { printf '== %s\n' "$*" >&2; }

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    say "no Python >= 3.11 with the venv module found; install one or set PYTHON (Debian: apt-get install python3-venv)"
    return 1
}

use_venv() {
    local extra=$1 venv=${VENV:-${VIRTUAL_ENV:-.venv}} base stamp
    if [[ ! -x $venv/bin/python ]]; then
        base=$(find_python) || return 1
        say "making $venv with $("$base" --version)"
        "$base" -m venv "$venv" || return 1
    fi
    PY=$(cd "$venv/bin" && pwd)/python
    # Installed once for each state of pyproject.toml, so that later runs need no network.
    stamp=$venv/.shmtrie-$(printf '%s %s' "$extra" "$PWD" | cat - pyproject.toml | sha256sum | cut -c1-16)
    if [[ ! -e $stamp ]]; then
        say "installing shmtrie[$extra] and what it needs"
        "$PY" -m pip install --quiet --disable-pip-version-check --editable ".[$extra]" || return 1
        touch "$stamp"
    fi
}
