"""``python -m fedprompt`` is the command line."""

from fedprompt.cli import main

if __name__ == "__main__":
    main()
