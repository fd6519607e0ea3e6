"""``python -m resilient`` is the command ``resilient``."""

from resilient.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
