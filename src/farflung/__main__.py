"""``farflung`` and ``python -m farflung``: Ctrl-C is quiet from the first moment, while the command line is still imported."""

import os
import sys

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        from farflung.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201 - nothing of the command line is there yet
        sys.exit(_INTERRUPTED)
    except SystemExit as over:
        if over.code == _INTERRUPTED:  # the command has cleaned up; gRPC may wait for ever for a call that was cut in the middle
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_INTERRUPTED)
        raise


if __name__ == "__main__":
    main()
