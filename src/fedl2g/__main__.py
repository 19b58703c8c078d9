"""`python -m fedl2g` is the command `fedl2g`."""

from fedl2g.cli import main

main()
