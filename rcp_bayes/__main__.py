"""`python -m rcp_bayes` is the command `rcp-bayes`."""

from rcp_bayes.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
