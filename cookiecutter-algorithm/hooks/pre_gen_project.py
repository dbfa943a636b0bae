"""Refuse what `relax new` refuses, when cookiecutter runs beside an installed relax."""

import sys

try:
    from relax_core.errors import RelaxError
    from relax_core.scaffold.names import check_author, check_name
except ImportError:
    sys.exit(0)

try:
    check_name("{{ cookiecutter.name }}")
    check_author("""{{ cookiecutter.author }}""")
except RelaxError as error:
    sys.exit(f"error: {error}")
