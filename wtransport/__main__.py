"""``python -m wtransport``: the command line without its script."""

from wtransport.cli.main import app

app(prog_name="wtransport")
