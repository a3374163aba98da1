"""``python -m bigpca``: the command line, if the ``bigpca`` script is not on the path."""

from bigpca.cli import main

if __name__ == "__main__":
    main()
